"""Temporary folders of which others can tell whether the process that made them still lives."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tune_speed.runtime.file_lock import acquire

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
