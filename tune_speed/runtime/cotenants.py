"""Who shares a device right now: a file a trial, whose lock the kernel frees as the trial ends."""

import json
import os
import secrets
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self

from tune_speed.runtime import turnstile

LONGEST_LABEL = 200
LARGEST_FILE_BYTES = 65_536
MOST_TRIES = 20


class Tenancy(AbstractContextManager["Tenancy"]):
    """The presence of one trial on a device. `why_not` says why it cannot be shown, else None."""

    def __init__(self, path: Path, file: int | None, *, why_not: str | None) -> None:
        self.why_not = why_not
        self._path = path
        self._file = file
        self._pid = os.getpid()
        turnstile.close_in_forks(self)

    @classmethod
    def begin(cls, device_key: str, *, study: str, trial: str, folder: Path | None = None) -> Self:
        """Shows `study/trial` as a device's tenant until closed; never raises without a folder."""
        tenants = (
            folder or turnstile.default_folder()
        ) / f"{turnstile.file_name(device_key)}.tenants"
        content = json.dumps({"study": study, "trial": trial, "pid": os.getpid()}).encode()
        try:
            turnstile.make_shared_folder(tenants.parent)
            turnstile.make_shared_folder(tenants)
            for _ in range(MOST_TRIES):
                path = (
                    tenants / f"{os.getpid()}-{turnstile.file_name(trial)}-{secrets.token_hex(4)}"
                )
                file = _show(path, content)
                if file is not None:
                    return cls(path, file, why_not=None)
            raise OSError("no file there stays")
        except OSError as error:
            return cls(tenants / "none", None, why_not=turnstile.reason(tenants.parent, error))

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        self.why_not = self.why_not or "The tenancy is closed."
        if file is None:
            return
        # A forked child leaves its parent's presence alone.
        if os.getpid() == self._pid:
            _remove(self._path)
        os.close(file)

    def others(self) -> tuple[str, ...]:
        return tuple(sorted(self._others().values()))

    def pids(self) -> frozenset[int]:
        found = (name.partition("-")[0] for name in self._others())
        # In a container a tenant may be process 1, from which all descend outside.
        return frozenset(int(pid) for pid in found if pid.isdecimal() and pid != "1")

    def _others(self) -> dict[str, str]:
        if self.why_not:
            return {}
        try:
            paths = [path for path in self._path.parent.iterdir() if path != self._path]
            labels = {path.name: _label_if_alive(path) for path in paths}
        except OSError as error:
            self.why_not = turnstile.reason(self._path.parent.parent, error)
            return {}
        return {name: label for name, label in labels.items() if label is not None}


def _show(path: Path, content: bytes) -> int | None:
    """Returns the locked file, None if another took it for a dead trial's before it was locked."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        # Whatever the umask.
        os.fchmod(file, 0o644)
        # Before the lock: who finds it locked can read it.
        os.write(file, content)
        if turnstile.try_flock(file, turnstile.EXCLUSIVE) and os.fstat(file).st_nlink > 0:
            return file
        _remove(path)
    except OSError:
        _remove(path)
        os.close(file)
        raise
    os.close(file)
    return None


def _label_if_alive(path: Path) -> str | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        # It just ended, or is no tenant's file.
        return None
    try:
        if not turnstile.try_flock(file, turnstile.SHARED):
            return _label(os.read(file, LARGEST_FILE_BYTES), path.name)
        _remove(path)
    finally:
        os.close(file)
    return None


def _remove(path: Path) -> None:
    # Another user's, who removes it when next asking for co-tenants.
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _label(content: bytes, name: str) -> str:
    try:
        fields = json.loads(content)
        label = f"{fields['study']}/{fields['trial']}"
    except (ValueError, TypeError, KeyError, RecursionError):
        label = f"?/{name}"
    # Other users wrote it: no line breaks, no codes that a terminal obeys.
    return "".join(sign if sign.isprintable() else "?" for sign in label)[:LONGEST_LABEL]
