"""What a certification has run: one JSON line each, on disk before the next run begins.

| event       | fields                     | written                                     |
|-------------|----------------------------|---------------------------------------------|
| `begin`     | plan, finalists, leader    | once                                        |
| `described` | name, facts, is_last       | machine and code, before the first run of a |
|             |                            | session and after the last run of all       |
| `run`       | stage, round, name, record | when a run ended                            |
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tune_speed.core.event_log import EventFile, differences
from tune_speed.core.records import TrialRecord
from tune_speed.experiments.certification.schedule import Turn


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
        self._file = EventFile(path, what="a certification")
        self._file.replay(self._take)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def begin(self, header: Mapping[str, Any]) -> None:
        """Writes what is certified, or checks that it is what was begun.

        Raises: ConfigError if something else was begun.
        """
        self.header = self._file.begin(
            header, begun=self.header, tell=lambda begun, now: ", ".join(differences(begun, now))
        )

    def differences(self, header: Mapping[str, Any]) -> list[str]:
        """Returns how `header` differs from what was begun, a phrase a field."""
        assert self.header is not None
        return differences(self.header, header)

    def described(self, name: str, facts: dict[str, Any], *, is_last: bool = False) -> None:
        """Writes what surrounds the runs of a contestant."""
        self._file.append({"event": "described", "name": name, "facts": facts, "is_last": is_last})
        self._take_facts(name, facts, is_last=is_last)

    def _take_facts(self, name: str, facts: dict[str, Any], *, is_last: bool) -> None:
        if is_last:
            self.last_facts[name] = facts
        else:
            self.first_facts.setdefault(name, facts)

    def ran(self, turn: Turn, record: TrialRecord) -> None:
        """Writes a run."""
        self._file.append(
            {"event": "run", **turn._asdict(), "record": record.model_dump(mode="json")}
        )
        self.runs.append(Ran(turn, record))

    def _take(self, event: dict[str, Any], number: int) -> None:
        try:
            kind = event.pop("event")
            if kind == "begin":
                self.header = event
                return
            if kind == "described":
                self._take_facts(event["name"], event["facts"], is_last=event["is_last"])
                return
            record = TrialRecord.model_validate(event.pop("record"))
            self.runs.append(Ran(Turn(**event), record))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._file.damaged(number, error) from error
