"""Locks between processes, which the kernel frees when their holder dies; folders that have one."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tune_speed.core.errors import StorageError, writing
from tune_speed.runtime import heartbeat

POLL_S = 0.05


def acquire(file: int, *, wait_s: float, is_renewed: bool = False) -> bool:
    """Locks an open file until it is closed; returns whether within `wait_s`. Raises: OSError.

    With `is_renewed`, within `wait_s` [s] from the last time that its holder touched the file.
    """
    deadline = time.monotonic() + wait_s
    touched = os.fstat(file).st_mtime_ns
    while True:
        if is_renewed and touched != (touched := os.fstat(file).st_mtime_ns):
            deadline = time.monotonic() + wait_s
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() > deadline:
            return False
        # A process that waits for another does not hang, and the wait is bounded.
        heartbeat.beat()
        time.sleep(POLL_S)


@contextmanager
def file_lock(path: Path, *, wait_s: float, is_renewed: bool = False) -> Iterator[None]:
    """Holds the lock file `path` alone while the block runs; it stays, with its last holder's id.

    With `is_renewed`, `wait_s` begins again whenever the holder touches the file.

    Raises: StorageError if it cannot be had within `wait_s` [s], or is no file; ConfigError.
    """
    with writing(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        _acquire(file, path, wait_s, is_renewed)
        if (content := os.pread(file, 32, 0)).strip(b"0123456789"):
            raise StorageError(
                f"{path} must be a lock file, which holds the id of a process, but it begins with"
                f" {content!r}. Move it away."
            )
        # On a full disk the lock still works; only the message about its holder would know less.
        with suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(file)


def _acquire(file: int, path: Path, wait_s: float, is_renewed: bool) -> None:
    try:
        is_held = acquire(file, wait_s=wait_s, is_renewed=is_renewed)
    except OSError as error:
        raise StorageError(
            f"{path} must lie on a file system with flock, but: {error}. Move its folder"
            " to a local disk."
        ) from error
    if not is_held:
        holder = os.pread(file, 20, 0).decode(errors="replace").strip() or "unknown"
        raise StorageError(
            f"{path} must become free within {wait_s:g} s"
            f"{' of a sign of life' if is_renewed else ''}, but process {holder} holds it."
            " If that process hangs, end it and try again."
        )


PREFIX = "tune_speed-tmp-"


class TemporaryFolder:
    """A new folder, locked until it is removed; of a killed process the next session removes it."""

    def __init__(self) -> None:
        """Makes it in the usual place. Raises: OSError."""
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
            self._lock = _lock(self.path, wait_s=1.0)
            # Another session may have come upon it before it was locked, and removed it.
            if self.path.exists():
                break

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def leftovers() -> Iterator[Path]:
    """Yields temporary folders of ended processes, each locked until the next is asked for."""
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        if (lock := _lock(path)) is not None:
            yield path
            os.close(lock)


def remove_leftovers() -> None:
    for path in leftovers():
        shutil.rmtree(path, ignore_errors=True)


def _lock(path: Path, *, wait_s: float = 0.0) -> int | None:
    """Returns the folder, open and locked; None if it is held, gone, another's or a link."""
    file = None
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if acquire(file, wait_s=wait_s):
            return file
    except OSError:  # Some file systems have no locks.
        pass
    if file is not None:
        os.close(file)
    return None
