"""What a certification has run: one JSON line each, on disk before the next run begins.

| event       | fields                     | written                                     |
|-------------|----------------------------|---------------------------------------------|
| `begin`     | plan, finalists, leader    | once                                        |
| `described` | name, facts, is_last       | machine and code, before the first run of a |
|             |                            | session and after the last run of all       |
| `run`       | stage, round, name, record | when a run ended                            |
"""

from pathlib import Path
from typing import Any, NamedTuple

from tune_speed.core.event_log import SessionLog
from tune_speed.core.records import TrialRecord
from tune_speed.experiments.certification.schedule import Turn


class Ran(NamedTuple):
    """One run of a certification."""

    turn: Turn
    record: TrialRecord


class CertifyLedger(SessionLog):
    """An open ledger, held by one process at a time."""

    what = "a certification"

    def __init__(self, path: Path) -> None:
        """See `SessionLog`."""
        self.runs: list[Ran] = []
        self.first_facts: dict[str, dict[str, Any]] = {}
        """Surroundings before the first run, by contestant."""
        self.last_facts: dict[str, dict[str, Any]] = {}
        """Surroundings after the last run; empty until then."""
        super().__init__(path)

    def described(self, name: str, facts: dict[str, Any], *, is_last: bool = False) -> None:
        """Writes what surrounds the runs of a contestant."""
        event = {"name": name, "facts": facts, "is_last": is_last}
        self.append("described", **event)
        self.take("described", event)

    def ran(self, turn: Turn, record: TrialRecord) -> None:
        """Writes a run."""
        self.append("run", **turn._asdict(), record=record.model_dump(mode="json"))
        self.runs.append(Ran(turn, record))

    def take(self, kind: str, event: dict[str, Any]) -> None:
        """See `SessionLog`."""
        if kind != "described":
            record = TrialRecord.model_validate(event.pop("record"))
            self.runs.append(Ran(Turn(**event), record))
        elif event["is_last"]:
            self.last_facts[event["name"]] = event["facts"]
        else:
            # A resumed session describes them again; what counts is before the first run.
            self.first_facts.setdefault(event["name"], event["facts"])
