"""Memory that this process and others see at once."""

import os
import tempfile
from contextlib import suppress
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tune_speed.data.loaders.gather_worker import map_array


class _Shared:
    """An array that another process maps from a file by the file's number."""

    _file: IO[bytes]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset = 0

    @property
    def file(self) -> int:
        """Number of the file in this process."""
        return self._file.fileno()

    def close(self) -> None:
        """Lets no more processes share it; the memory is freed with the last mapping."""
        self._file.close()


class SharedArray(_Shared):
    """An array in an anonymous file."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        # Without a name nothing is left behind if the process is killed. And not in /dev/shm, of
        # which a container may have as little as 64 MiB.
        if hasattr(os, "memfd_create"):
            memory = os.memfd_create("tune_speed", os.MFD_CLOEXEC)
            self._file = os.fdopen(memory, "r+b", buffering=0)
        else:
            # Not on Linux: on disk, but without a name too.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._file.truncate(int(np.prod(shape)) * self.dtype.itemsize)
        self.array: NDArray[Any] = map_array(self.file, list(shape), self.dtype.str)


class FileArray(_Shared):
    """An array in a file of its own, for reading: processes that map it share its pages."""

    def __init__(self, mapped: "np.memmap[Any, Any]") -> None:
        """Opens the file that `mapped` lies in. Raises: OSError if it is not there any more."""
        assert mapped.filename is not None
        self._file = open(mapped.filename, "rb", buffering=0)  # noqa: SIM115
        self.shape, self.dtype, self.offset = mapped.shape, mapped.dtype, mapped.offset


def shared(array: NDArray[Any]) -> SharedArray | FileArray:
    """Returns the array for other processes, without a copy where it is mapped from a file."""
    mapped = file_map(array)
    if mapped is not None:
        # An entry of the cache that was replaced meanwhile is mapped still, but has no name.
        with suppress(FileNotFoundError):
            return FileArray(mapped)
    copied = SharedArray(array.shape, array.dtype)
    np.copyto(copied.array, array)
    return copied


def file_map(array: NDArray[Any]) -> "np.memmap[Any, Any] | None":
    """Returns the memory map that `array` is the whole of, or None."""
    base = array.base
    return base if isinstance(base, np.memmap) and base.shape == array.shape else None
