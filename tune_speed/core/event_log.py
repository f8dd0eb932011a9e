"""An append-only log of events, a JSON line each, that one process at a time holds.

A line is on disk before `append` returns. A piece of a line, of a process that was killed, moves
to `<log>.cut`. `SessionLog` is the log of a session that resumes: its first event says of what.
"""

import fcntl
import json
import logging
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from tune_speed.core.errors import ConfigError, StorageError, unwritable
from tune_speed.core.text import switch

_log = logging.getLogger(__name__)
_FLAGS = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, kw_only=True)
class LogAdvice:
    """What messages about a log advise."""

    locked: str = "Wait for it, or stop it."
    """Another process holds it."""
    damaged: str = field(
        default_factory=lambda: f"start {{what}} from scratch with {switch('again')}"
    )
    """Instead of fixing or removing a line that cannot be read; `{what}` is replaced."""
    unwritable: str = "set TUNE_SPEED_STUDIES to another folder; the same command continues there"


class MisplacedEvent(ValueError):
    """A whole event that cannot be where it is, by the lines before it; the message says why."""


class EventLog(AbstractContextManager["EventLog"]):
    """An open log."""

    def __init__(
        self, path: Path, *, what: str, advice: LogAdvice | None = None, key: str = "event"
    ) -> None:
        """Opens or creates the file. Raises: ConfigError if it is held elsewhere; StorageError."""
        self.path = path
        self._what, self._advice, self._key = what, advice or LogAdvice(), key
        self._number = 0
        self._said: dict[str, tuple[int, int]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | _FLAGS, 0o644)
        except OSError as error:
            raise self.unwritable(error) from error
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            self.close()
            # Reading a named pipe would wait for a writer, for ever.
            raise StorageError(
                f"{path} must be a regular file, but it is a pipe or a device. Rename or remove it."
            )
        try:
            # The kernel frees this lock when its process ends, however it ends: none stays.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._file)
            self.close()
            raise ConfigError(
                f"{what} must be run by one process at a time, but another one holds {path}"
                f"{holder}. {self._advice.locked}"
            ) from None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        # What `append` wrote is on disk: an error here could only hide another one.
        with suppress(OSError):
            os.close(self._file)

    def events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields line numbers and events, then mends the file's end. Raises: StorageError."""
        with open(self._file, "rb", closefd=False) as file:
            file.seek(0)
            data = file.read()
        whole, begins = whole_size(data), f'{{"{self._key}": "'.encode()
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            if line.strip():
                yield number, self._event(number, line)
        if not whole and not (data.startswith(begins) or begins.startswith(data)):
            raise self.damaged(1, ValueError())
        try:
            self._mend_end(data, whole)
        except OSError as error:
            raise self.unwritable(error) from error

    def _event(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            event = json.loads(line)
            if not isinstance(event, dict) or self._key not in event:
                raise TypeError("no event")
        # RecursionError: a damaged line may nest brackets deeper than Python's stack.
        except (ValueError, TypeError, RecursionError) as error:
            raise self.damaged(number, error) from error
        return event

    def _mend_end(self, data: bytes, whole: int) -> None:
        # A piece was never acknowledged: `append` had not returned.
        if piece := data[whole:]:
            saved = self.path.with_name(f"{self.path.name}.cut")
            with open(os.open(saved, os.O_WRONLY | _FLAGS, 0o644), "ab", buffering=0) as file:
                file.write(piece + b"\n")
                os.fsync(file.fileno())
            os.ftruncate(self._file, whole)
            _log.warning("%s ended in a piece of a line, which is in %s now", self.path, saved)
        elif data and not data.endswith((b"\n", b"\r")):
            os.write(self._file, b"\n")

    def replay(self, take: Callable[[str, dict[str, Any]], None]) -> None:
        """Passes kind and fields of each event to `take`. Raises: StorageError: a damaged line."""
        try:
            for number, event in self.events():
                self._number = number
                try:
                    take(event.pop("event"), event)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise self.damaged(number, error) from error
        except BaseException:
            self.close()
            raise
        self._said.clear()

    def is_new(self, what: str, said: Any) -> bool:
        """Returns whether no earlier line says `said` of `what`. Raises: MisplacedEvent."""
        now = self._number, hash(json.dumps(said, sort_keys=True))
        line, before = self._said.setdefault(what, now)
        if before != now[1]:
            raise MisplacedEvent(f"{what} must be written once, but line {line} has another")
        return line == self._number

    def append(self, event: Mapping[str, Any]) -> None:
        """Writes an event and waits for the disk. Raises: StorageError."""
        try:
            self.write(event)
        except OSError as error:
            raise self.unwritable(error) from error

    def write(self, event: Mapping[str, Any]) -> None:
        """Does what `append` does. Raises: OSError, and then no part of the line is left."""
        line = json.dumps(event, allow_nan=False).encode() + b"\n"
        size = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, line)
            # A full disk may take a piece, and refuses the next.
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):  # It must not hide the first error.
                os.ftruncate(self._file, size)
            raise

    def damaged(self, number: int, error: BaseException) -> StorageError:
        kind = type(error).__name__
        fault = f"every line must be an event as JSON, but this one is damaged ({kind})."
        fault += " Fix or remove the line"
        if isinstance(error, MisplacedEvent):
            fault = f"{error}. Put the lines back as they were written"
        instead = self._advice.damaged.format(what=self._what)
        return StorageError(f"{self.path}:{number}: {fault}, or {instead}.")

    def unwritable(self, error: OSError) -> ConfigError | StorageError:
        return unwritable(self.path, error, hint=self._advice.unwritable)


class SessionLog(ABC):
    """The log of a session, whose first event, `begin`, holds what a resumed one must match.

    A subclass sets its own attributes before `__init__`, which replays the file.
    """

    what: ClassVar[str]
    """What is run, for messages, such as `a certification`."""

    def __init__(self, path: Path) -> None:
        """Opens and replays the file. Raises: ConfigError if it is held elsewhere; StorageError."""
        self.path = path
        self.header: dict[str, Any] | None = None
        self._log = EventLog(path, what=self.what)
        self._log.replay(self._replay)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    @abstractmethod
    def take(self, kind: str, event: dict[str, Any]) -> None:
        """Takes over an event that an earlier process wrote, other than `begin`."""

    def differences(self, header: Mapping[str, Any]) -> list[str]:
        """Returns how `header` differs from what was begun, a phrase each; nothing was: none."""
        return [] if self.header is None else differences(self.header, header)

    def begin(self, header: Mapping[str, Any]) -> None:
        """Writes what is run. Raises: ConfigError if something else was begun; StorageError."""
        if self.header is None:
            self._log.append({"event": "begin", **header})
            self.header = dict(header)
        elif found := self.differences(header):
            raise ConfigError(
                f"{self.what} that was begun must go on as it began, but differs:"
                f" {'; '.join(found)} ({self.path}). Begin another with {switch('again')}, or"
                " give the same options."
            )

    def append(self, kind: str, **fields: Any) -> None:
        """Writes an event. Raises: StorageError."""
        self._log.append({"event": kind, **fields})

    def _replay(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "begin":
            self._log.is_new("what is run", event)
            self.header = event
        elif self.header is None:
            raise MisplacedEvent(f"{self.what} must begin with its event `begin`")
        else:
            self.take(kind, event)


def whole_size(data: bytes) -> int:
    """Returns the bytes of whole lines, whatever ends them; a last one without an end is JSON."""
    size = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    try:
        return len(data) if isinstance(json.loads(data[size:]), dict) else size
    except (ValueError, RecursionError):
        return size


def _holder(file: int) -> str:
    place = f":{os.fstat(file).st_ino} "
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            # In another container's numbers it is 0 or less.
            if " FLOCK " in line and place in line and (number := int(line.split()[4])) > 0:
                return f" (process {number})"
    return ""


def differences(begun: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    # As read back from the file: tuples become lists, and numbers as keys become strings.
    ours = json.loads(json.dumps(dict(now)))
    other = [name for name in ours if ours[name] != begun.get(name)]
    return [f"{name} = {begun.get(name)}, now {ours[name]}" for name in other]


def latest_log(folder: Path, stem: str, *, again: bool) -> Path:
    """Returns the last file `stem-NUMBER.jsonl`; a new one where there is none, or with `again`."""
    pattern = re.compile(re.escape(stem) + r"-(\d+)\.jsonl")
    matches = map(pattern.fullmatch, (path.name for path in folder.glob("*.jsonl")))
    last = max((int(match[1]) for match in matches if match), default=0)
    return folder / f"{stem}-{last + 1 if again or not last else last}.jsonl"
