"""A file of events, one JSON line each, that one process at a time holds and appends to.

A line is on disk before `append` returns. A process that was killed in mid-line leaves a piece of
one, which the next to open the file cuts off.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from tune_speed.core.errors import ConfigError, StorageError


class EventFile:
    """An open file of events."""

    def __init__(self, path: Path, *, what: str) -> None:
        """Opens the file, creating it if needed.

        Args:
            path: Of the file.
            what: What it is about, for messages, such as `a certification`.

        Raises: ConfigError if another process holds it; StorageError if it cannot be written.
        """
        self.path = path
        self._what = what
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            self._lock()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._file)

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields each event with the number of its line.

        Raises: StorageError if a line is damaged.
        """
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)  # Killed within a write.
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise self.damaged(number, error) from error
            if not isinstance(event, dict):
                raise self.damaged(number, TypeError("no mapping"))
            yield number, event

    def replay(self, take: Callable[[dict[str, Any], int], None]) -> None:
        """Gives each event to `take`, with the number of its line; lets go of the file if it fails.

        Raises: StorageError if a line is damaged, and what `take` raises.
        """
        try:
            for number, event in self.events():
                take(event, number)
        except BaseException:
            self.close()
            raise

    def begin(
        self,
        header: Mapping[str, Any],
        *,
        begun: dict[str, Any] | None,
        tell: Callable[[Mapping[str, Any], Mapping[str, Any]], str],
    ) -> dict[str, Any]:
        """Writes what the file is about, or checks that it is what was begun; returns that.

        Args:
            header: What is to be run now.
            begun: What an earlier process began; None: nothing.
            tell: Says in words how the two differ; empty where they do not.

        Raises: ConfigError if something else was begun; StorageError.
        """
        if begun is None:
            self.append({"event": "begin", **header})
            return dict(header)
        if told := tell(begun, header):
            raise ConfigError(
                f"{self._what} that was begun must go on as it began, but differs: {told}"
                f" ({self.path}). Begin another with --again, or give the same options."
            )
        return begun

    def append(self, event: Mapping[str, Any]) -> None:
        """Writes an event. Raises: StorageError."""
        line = json.dumps(event, allow_nan=False).encode() + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            while written < len(line):  # A full disk may take a piece, and refuses the next.
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, size)
            raise self._not_writable(error) from error

    def damaged(self, number: int, error: BaseException) -> StorageError:
        """Returns the error that says so of a line."""
        return StorageError(
            f"{self.path}:{number}: every line must be an event as JSON, but this one is"
            f" damaged ({type(error).__name__}). Mend or remove the line, or begin"
            f" {self._what} anew with --again."
        )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{self._what} must be run by one process at a time, but another one holds"
                f" {self.path}. Wait for it, or stop it."
            ) from None

    def _not_writable(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.path} must be writable, but got: {error.strerror}. Free some space, or set"
            " TUNE_SPEED_STUDIES to another folder; the same command goes on where it stopped."
        )


def differences(begun: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns how `now` differs from what was begun, a phrase a field."""
    ours = json.loads(json.dumps(dict(now)))
    other = [name for name in ours if ours[name] != begun.get(name)]
    return [f"{name} = {begun.get(name)}, now {ours[name]}" for name in other]
