"""What an ablation has run: one JSON line each, on disk before the next run begins.

Events: `begin` (all that fixes the arms), `tuned` (arm, factor, seed, record: a run of the
re-tuning), and `ran` (arm, block, record: a run of the comparison).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tune_speed.core.config import flatten
from tune_speed.core.event_log import MisplacedEvent, SessionLog, differences
from tune_speed.core.records import TrialRecord
from tune_speed.experiments.ablation.design import BASE

# Entries of the header that are compared by themselves.
DETAILED = ("workload", "arms", "fields")


class Tried(NamedTuple):
    """A run of the re-tuning."""

    arm: str
    factor: float
    seed: int


class Turn(NamedTuple):
    """A run of the comparison."""

    arm: str
    block: int


class AblationLedger(SessionLog):
    """An open ledger, held by one process at a time."""

    what = "an ablation"

    def __init__(self, path: Path) -> None:
        self.tried: dict[Tried, TrialRecord] = {}
        self.runs: dict[Turn, TrialRecord] = {}
        super().__init__(path)

    def add_tried(self, tried: Tried, record: TrialRecord) -> None:
        self.append("tuned", **tried._asdict(), record=record.model_dump(mode="json"))
        self.tried[tried] = record

    def add_run(self, turn: Turn, record: TrialRecord) -> None:
        self.append("ran", **turn._asdict(), record=record.model_dump(mode="json"))
        self.runs[turn] = record

    def take(self, kind: str, event: dict[str, Any]) -> None:
        record = TrialRecord.model_validate(said := event.pop("record"))
        if kind == "tuned":
            self.tried[Tried(**event)] = record
        elif kind == "ran":
            self.runs[Turn(**event)] = record
        else:
            raise MisplacedEvent(f"an ablation has no event {kind!r}")
        self._log.is_new(f"the run {event}", said)

    def differences(self, header: Mapping[str, Any]) -> list[str]:
        """Returns how `header` differs from what was begun, a phrase each.

        What an earlier version did not write down is not known to differ. Hashes decide; the
        message names `fields`.
        """
        begun = self.header or {}
        plain = [name for name in header if name in begun and name not in DETAILED]
        found = differences(*({name: each[name] for name in plain} for each in (begun, header)))
        is_other_task = begun.get("workload") != header["workload"]
        arms, others = begun.get("arms", {}), header["arms"]
        changed = [name for name in {**arms, **others} if arms.get(name) != others.get(name)]
        if is_other_task or BASE in changed:
            ours, theirs = (flatten(each.get("fields", {})) for each in (begun, header))
            # Where the ledger has no `fields`, only that the task differs is known.
            fields = differences(ours, {**dict.fromkeys(ours), **theirs}) if ours else []
            return [*found, *(fields or ["workload" if is_other_task else "recipe"])]
        return [*found, *([f"arms {', '.join(changed)}"] if changed else [])]
