"""Pixels that worker processes map instead of each getting a copy."""

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SharedPixels:
    """An array in an anonymous file, to be sent to processes while these are started.

    The file has no name, so that nothing is left behind if this process is killed; and it is not in
    /dev/shm, of which a container may have as little as 64 MiB.
    """

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self._shape = pixels.shape
        self._file = _anonymous_file()
        with open(self._file, "wb", closefd=False) as file:
            file.write(np.ascontiguousarray(pixels).data)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (reduction.DupFd(self._file), self._shape)

    def close(self) -> None:
        """Frees the file here; processes that mapped it keep it."""
        os.close(self._file)


def _attach(sent: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    file = sent.detach()
    try:
        mapped = mmap.mmap(file, 0, prot=mmap.PROT_READ)
    finally:
        os.close(file)
    return np.frombuffer(mapped, dtype=np.uint8).reshape(shape)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tune_speed_pixels", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # already without a name
        return os.dup(file.fileno())
