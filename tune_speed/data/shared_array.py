"""Memory that this process and its workers see at once."""

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SharedArray:
    """A uint8 array in an anonymous file; to be sent to processes while these are started.

    The file has no name, so that nothing is left behind if the process is killed; and it is not in
    /dev/shm, of which a container may have as little as 64 MiB.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._file = _anonymous_file()
        os.ftruncate(self._file, int(np.prod(shape)))
        self.array = _map(self._file, shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (reduction.DupFd(self._file), self.array.shape)

    def close(self) -> None:
        """Lets no more processes share it; the memory is freed when the last one lets it go."""
        os.close(self._file)


def _attach(sent: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Returns the array itself: a process that it was sent to needs nothing else."""
    file = sent.detach()
    try:
        return _map(file, shape)
    finally:
        os.close(file)


def _map(file: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(file, 0), dtype=np.uint8).reshape(shape)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tune_speed", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # not on Linux: on disk, but already without a name
        return os.dup(file.fileno())
