"""Speed-ups of the published arms, and of trials of ours that are such arms."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tune_speed.components.metrics.repeats import speed_up
from tune_speed.core.records import TrialRecord
from tune_speed.experiments.published.matching import figures_of, flat_recipe, settings_of
from tune_speed.experiments.published.published import PublishedFigure
from tune_speed.experiments.published.settings import Setting, base_of

# Paths that tell the arms of a source apart, where it names them.
NAMED_TECHNIQUES = ("accumulation_steps", "precision", "devices")
# Precisions that count as one for that: the sources have fp16 only.
MIXED = {"fp16": "mixed", "bf16": "mixed"}


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
    """Returns the speed-up over the one trial of the baseline that did equally much."""
    bases = [
        each
        for each in records
        if base in settings_of(each)
        and is_arm(each, base)
        and each.recipe.get("epochs") == record.recipe.get("epochs")
        and each.workload_hash == record.workload_hash
        # Several devices are described otherwise than the one of their baseline.
        and (each.device == record.device or record.recipe.get("devices", 1) > 1)
    ]
    if len(bases) != 1 or not bases[0].runs or not record.runs:
        return None
    base_s, ours_s = (
        statistics.fmean(run.clocks.train_s for run in each.runs) for each in (bases[0], record)
    )
    return speed_up(base_s, ours_s) if base_s and ours_s else None
