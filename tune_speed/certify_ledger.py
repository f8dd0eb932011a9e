"""What a certification has run: one JSON line each, on disk before the next run begins.

| event       | fields                     | written                                     |
|-------------|----------------------------|---------------------------------------------|
| `begin`     | plan, finalists, leader    | once                                        |
| `described` | name, facts, is_last       | machine and code, before the first run of a |
|             |                            | session and after the last run of all       |
| `run`       | stage, round, name, record | when a run ended                            |
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tune_speed.contest import Turn
from tune_speed.errors import ConfigError, StorageError
from tune_speed.records import TrialRecord


class Ran(NamedTuple):
    """One run of a certification."""

    turn: Turn
    record: TrialRecord


class CertifyLedger:
    """An open ledger, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Opens the file, creating it if needed.

        Raises: ConfigError if another process holds it; StorageError if it cannot be written, or a
            line is damaged.
        """
        self.path = path
        self.header: dict[str, Any] | None = None
        self.runs: list[Ran] = []
        self.first_facts: dict[str, dict[str, Any]] = {}
        """Surroundings before the first run, by contestant."""
        self.last_facts: dict[str, dict[str, Any]] = {}
        """Surroundings after the last run; empty until then."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _storage_error(path, error) from error
        try:
            self._lock()
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def begin(self, header: Mapping[str, Any]) -> None:
        """Writes what is certified, or checks that it is what was begun.

        Raises: ConfigError if something else was begun.
        """
        if self.header is None:
            self._append({"event": "begin", **header})
            self.header = dict(header)
            return
        told = ", ".join(self.differences(header))
        if told:
            raise ConfigError(
                f"a certification that was begun must go on as it began, but differs: {told}"
                f" ({self.path}). Begin another with --again, or give the same options."
            )

    def differences(self, header: Mapping[str, Any]) -> list[str]:
        """Returns how `header` differs from what was begun, a phrase a field."""
        assert self.header is not None
        theirs, ours = self.header, json.loads(json.dumps(dict(header)))
        other = [name for name in ours if ours[name] != theirs.get(name)]
        return [f"{name} = {theirs.get(name)}, now {ours[name]}" for name in other]

    def described(self, name: str, facts: dict[str, Any], *, is_last: bool = False) -> None:
        """Writes what surrounds the runs of a contestant."""
        self._append({"event": "described", "name": name, "facts": facts, "is_last": is_last})
        self._take_facts(name, facts, is_last=is_last)

    def _take_facts(self, name: str, facts: dict[str, Any], *, is_last: bool) -> None:
        if is_last:
            self.last_facts[name] = facts
        else:
            self.first_facts.setdefault(name, facts)

    def ran(self, turn: Turn, record: TrialRecord) -> None:
        """Writes a run."""
        self._append({"event": "run", **turn._asdict(), "record": record.model_dump(mode="json")})
        self.runs.append(Ran(turn, record))

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                "a study must be certified by one process at a time, but another one holds"
                f" {self.path}. Wait for it, or stop it."
            ) from None

    def _read(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._file, whole)  # Killed within a write.
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            self._take(line, number)

    def _take(self, line: bytes, number: int) -> None:
        try:
            event = json.loads(line)
            kind = event.pop("event")
            if kind == "begin":
                self.header = event
                return
            if kind == "described":
                self._take_facts(event["name"], event["facts"], is_last=event["is_last"])
                return
            record = TrialRecord.model_validate(event.pop("record"))
            self.runs.append(Ran(Turn(**event), record))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StorageError(
                f"{self.path}:{number}: every line must be an event as JSON, but this one is"
                f" damaged ({type(error).__name__}). Mend or remove the line, or begin another"
                " certification with --again."
            ) from error

    def _append(self, event: Mapping[str, Any]) -> None:
        line = json.dumps(event, allow_nan=False).encode() + b"\n"
        size = os.fstat(self._file).st_size
        try:
            os.write(self._file, line)
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, size)
            raise _storage_error(self.path, error) from error


def _storage_error(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} must be writable, but got: {error.strerror}. Free some space, or set"
        " TUNE_SPEED_STUDIES to another folder; the same command goes on where it stopped."
    )
