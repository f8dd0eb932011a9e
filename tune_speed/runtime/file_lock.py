"""A lock between processes of one or more machines that the kernel frees when its holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tune_speed.core.errors import StorageError
from tune_speed.runtime import heartbeat

POLL_S = 0.05


@contextmanager
def exclusive(path: Path, *, wait_s: float) -> Iterator[None]:
    """Holds the lock file `path` alone while the block runs; the file stays behind, empty of use.

    Args:
        path: Created if missing. Its text is the process id of the last holder.
        wait_s: Longest wait for another holder [s].

    Raises:
        StorageError: The file cannot be made or locked, or another process holds it for too long.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StorageError(
            f"The lock file {path} must be writable, but: {error}. Set TUNE_SPEED_CACHE to a folder"
            " that is."
        ) from error
    try:
        _acquire(file, path, wait_s)
        _write_holder(file)
        yield
    finally:
        os.close(file)  # frees the lock


def _acquire(file: int, path: Path, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while not _try_lock(file, path):
        if time.monotonic() > deadline:
            raise StorageError(
                f"{path} must become free within {wait_s:g} s, but process"
                f" {os.pread(file, 20, 0).decode(errors='replace').strip() or 'unknown'} holds it."
                " If that process hangs, end it and try again."
            )
        heartbeat.beat()  # Who waits for another does not hang; the wait is bounded.
        time.sleep(POLL_S)


def _try_lock(file: int, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StorageError(
            f"{path} must lie on a file system with flock, but: {error}. Set TUNE_SPEED_CACHE to a"
            " folder on a local disk."
        ) from error
    return True


def _write_holder(file: int) -> None:
    # On a full disk the lock still works; only the message above would know less.
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    except OSError:
        pass
