"""Memory that this process and its workers see at once."""

import os
import tempfile
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tune_speed.data.gather_worker import map_array


class SharedArray:
    """An array in an anonymous file, which another process maps by its number.

    The file has no name, so that nothing is left behind if the process is killed; and it is not in
    /dev/shm, of which a container may have as little as 64 MiB.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self._file = _anonymous_file()
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._file.truncate(int(np.prod(shape)) * self.dtype.itemsize)
        self.array: NDArray[Any] = map_array(self.file, list(shape), self.dtype.str)

    @property
    def file(self) -> int:
        """Number of the file in this process."""
        return self._file.fileno()

    def close(self) -> None:
        """Lets no more processes share it; the memory is freed when the last one lets it go."""
        self._file.close()


def _anonymous_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("tune_speed", os.MFD_CLOEXEC), "r+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)  # not on Linux: on disk, but without a name too
