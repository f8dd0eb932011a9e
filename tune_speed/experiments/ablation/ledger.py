"""Ledger of an ablation: a JSON line a run, on disk before the next run begins.

| event   | fields                     | written           |
|---------|----------------------------|-------------------|
| `begin` | all that fixes the arms    | once              |
| `tuned` | arm, factor, seed, record  | when a run of the re-tuning ended  |
| `ran`   | arm, block, record         | when a run of the comparison ended |
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from tune_speed.core.config import flatten
from tune_speed.core.event_log import EventFile, differences
from tune_speed.core.records import TrialRecord
from tune_speed.experiments.ablation.design import BASE

DETAILED = ("workload", "arms", "fields")
"""Entries of the header that are compared by themselves."""


class Tried(NamedTuple):
    """A run of the re-tuning."""

    arm: str
    factor: float
    seed: int


class Turn(NamedTuple):
    """A run of the comparison."""

    arm: str
    block: int


class AblationLedger:
    """An open ledger, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Opens the file, creating it if needed.

        Raises: ConfigError if another process holds it; StorageError if it cannot be written, or a
            line is damaged.
        """
        self.path = path
        self.header: dict[str, Any] | None = None
        self.tried: dict[Tried, TrialRecord] = {}
        self.runs: dict[Turn, TrialRecord] = {}
        self._file = EventFile(path, what="an ablation")
        self._file.replay(self._take)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def begin(self, header: Mapping[str, Any]) -> None:
        """Writes what is compared, or checks that it is what was begun.

        Raises: ConfigError if something else was begun.
        """
        self.header = self._file.begin(header, begun=self.header, tell=_differences)

    def add_tried(self, tried: Tried, record: TrialRecord) -> None:
        """Writes a run of the re-tuning. Raises: StorageError."""
        self._file.append(
            {"event": "tuned", **tried._asdict(), "record": record.model_dump(mode="json")}
        )
        self.tried[tried] = record

    def add_run(self, turn: Turn, record: TrialRecord) -> None:
        """Writes a run of the comparison. Raises: StorageError."""
        self._file.append(
            {"event": "ran", **turn._asdict(), "record": record.model_dump(mode="json")}
        )
        self.runs[turn] = record

    def _take(self, event: dict[str, Any], number: int) -> None:
        try:
            kind = event.pop("event")
            if kind == "begin":
                self.header = event
                return
            if self.header is None:
                raise ValueError("a run before what was begun")
            record = TrialRecord.model_validate(event.pop("record"))
            if kind == "tuned":
                self.tried[Tried(**event)] = record
            else:
                self.runs[Turn(**event)] = record
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._file.damaged(number, error) from error


def _differences(begun: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns how `now` differs from what was begun.

    Hashes decide on workload and arms; the message names `fields`.
    """
    # A version that lacks an entry, such as one before `machine`, is not known to differ in it.
    plain = [name for name in now if name in begun and name not in DETAILED]
    told: list[str] = differences(
        *({name: header[name] for name in plain} for header in (begun, now))
    )
    is_other_task = begun.get("workload") != now["workload"]
    arms, others = begun.get("arms", {}), now["arms"]
    changed = [name for name in {**arms, **others} if arms.get(name) != others.get(name)]
    if is_other_task or BASE in changed:
        ours, theirs = (flatten(header.get("fields", {})) for header in (begun, now))
        fields = differences(ours, {**dict.fromkeys(ours), **theirs}) if ours else []
        told += fields or ["workload" if is_other_task else "recipe"]
    elif changed:
        told.append(f"arms {', '.join(changed)}")
    return "; ".join(told)
