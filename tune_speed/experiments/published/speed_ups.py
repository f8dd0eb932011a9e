"""Speed-ups of the published arms, and of trials of ours that are such arms."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tune_speed.components.metrics.repeats import speed_up
from tune_speed.core.records import TrialRecord
from tune_speed.experiments.published.matching import figures_of, flat_recipe, settings_of
from tune_speed.experiments.published.published import PublishedFigure
from tune_speed.experiments.published.settings import Setting, base_of

NAMED_TECHNIQUES = ("accumulation_steps", "precision", "devices")
"""Paths that tell the arms of a source apart, where it names them."""
MIXED = {"fp16": "mixed", "bf16": "mixed"}
"""Precisions that count as one for that: the sources have fp16 only."""


@dataclass(frozen=True, kw_only=True)
class SpeedUp:
    """What a published arm gains over its baseline."""

    setting: Setting
    theirs: float
    """Baseline's execution time over the arm's."""
    ours: float | None
    """The same of training clocks; None without one trial of each arm that may be compared."""
    doubts: tuple[str, ...]
    """What is known to be wrong with either time of theirs."""


def speed_ups(record: TrialRecord, records: Sequence[TrialRecord]) -> Iterator[SpeedUp]:
    """Yields the speed-ups of the published arms that `record` is, from baselines in `records`."""
    for setting in settings_of(record):
        base = base_of(setting)
        if base is None or not is_arm(record, setting):
            continue
        times = [_exec_time(base), _exec_time(setting)]
        base_h, arm_h = (time.number for time in times)
        assert base_h is not None and arm_h is not None, times
        yield SpeedUp(
            setting=setting,
            theirs=speed_up(base_h, arm_h),
            ours=_ours(record, base, records),
            doubts=tuple(time.known_defect for time in times if time.known_defect),
        )


def is_arm(record: TrialRecord, setting: Setting) -> bool:
    """Returns whether a record of the setting's network has the techniques that make the arm."""
    flat = flat_recipe(record.recipe)
    named = [path for path in NAMED_TECHNIQUES if path in setting.recipe]
    depth = "speedups.depth"
    return setting.recipe.get(depth) == flat.get(depth) and all(
        _kind(setting.recipe[path]) == _kind(flat.get(path)) for path in named
    )


def _kind(value: Any) -> Any:
    return MIXED.get(value, value) if isinstance(value, str) else value


def _exec_time(setting: Setting) -> PublishedFigure:
    return next(figure for figure in figures_of(setting) if figure.metric == "exec_time")


def _ours(record: TrialRecord, base: Setting, records: Sequence[TrialRecord]) -> float | None:
    bases = [r for r in records if base in settings_of(r) and is_arm(r, base)]
    comparable = [r for r in bases if _are_comparable(r, record)]
    times = [_train_s(comparable[0]), _train_s(record)] if len(comparable) == 1 else []
    return speed_up(*times) if times and all(times) else None


def _are_comparable(base: TrialRecord, record: TrialRecord) -> bool:
    """Returns whether two trials did equally much, on one device or on more of them."""
    recipes: list[Mapping[str, Any]] = [base.recipe, record.recipe]
    same_length = recipes[0].get("epochs") == recipes[1].get("epochs")
    same_device = base.device == record.device or recipes[1].get("devices", 1) > 1
    return same_length and same_device and base.workload_hash == record.workload_hash


def _train_s(record: TrialRecord) -> float:
    return statistics.fmean(run.clocks.train_s for run in record.runs) if record.runs else 0.0
