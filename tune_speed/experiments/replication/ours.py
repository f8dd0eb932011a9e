"""Our figure for a claim, read from what an ablation found."""

import math
from collections.abc import Callable
from typing import NamedTuple

from tune_speed.experiments.ablation.design import AND, TIMES
from tune_speed.experiments.ablation.effects import Estimate
from tune_speed.experiments.ablation.result import AblationResult, ArmResult, Figure, Median
from tune_speed.study.replication import AGAINST_BASE, FigureName, UnitName

FROM_SECONDS = {"s": 1.0, "min": 1 / 60, "h": 1 / 3600}
GB_PER_GIB = 2**30 / 1e9
# Below it, the interval of a median is no interval to us: it is one of very few runs.
LEAST_CONFIDENCE = 0.95


class Own(NamedTuple):
    """One figure of ours, in the first of the units that it can have."""

    value: float | None
    """Infinite where what it is over never happened; None: there is none."""
    low: float | None = None
    """Lower end of the 95 % interval; None: there is none."""
    high: float | None = None
    """Upper end of it; None likewise."""
    n: int = 0
    """Runs, or pairs of runs with a common seed."""

    def map(self, change: Callable[[float], float]) -> "Own":
        """Returns the figure with a rising function of value and ends."""
        value, low, high = (None if each is None else change(each) for each in self[:3])
        return Own(value, low, high, self.n)


NOTHING = Own(None)


def no_effect(figure: FigureName) -> float | None:
    """Returns what a figure is where the arm is as the base: 1 or 0; None for those of one arm."""
    if figure not in AGAINST_BASE:
        return None
    return 0.0 if figure in ("time_increase", "time_saved", "accuracy_gain") else 1.0


def find_arm(result: AblationResult, name: str) -> ArmResult | None:
    """Returns the arm of these labels, in whatever order; None where there is none."""
    labels = set(name.split(AND))
    return next((arm for arm in result.arms if set(arm.name.split(AND)) == labels), None)


def own_figure(result: AblationResult, arm: ArmResult, figure: FigureName, unit: UnitName) -> Own:
    """Returns a figure of one of the result's arms, in one of the units that it can have."""
    own = _synergy(result, arm) if figure == "synergy" else _READERS[figure](arm)
    if figure == "epoch_s":
        return own.map(lambda value: value * FROM_SECONDS[unit])
    if unit == "GB":
        return own.map(lambda value: value * GB_PER_GIB)
    return own


def reasons_against(result: AblationResult, name: str) -> tuple[str, ...]:
    """Returns why an arm was not run here: its own reason, or else those of its levels.

    A level that cannot be run here is among the result's arms; combinations with it are not.
    """
    whole = find_arm(result, name)
    if whole is not None and whole.not_applicable is not None:
        return (whole.not_applicable,)
    labels = name.split(AND)
    against = {arm.name: arm.not_applicable for arm in result.arms if arm.not_applicable}
    found = [(label, against[label]) for label in labels if label in against]
    return tuple(f"`{label}`: {why}" for label, why in found)


def _estimate(estimate: Estimate | None) -> Own:
    if estimate is None:
        return NOTHING
    return Own(estimate.value, estimate.low, estimate.high, estimate.n)


def _mean(figure: Figure) -> Own:
    return Own(figure.mean, figure.low, figure.high, figure.n)


def _median(median: Median) -> Own:
    # A missing end of the interval is an open one: runs without the event count as infinite.
    if not median.n:
        return NOTHING
    value = math.inf if median.median is None else median.median
    if median.confidence < LEAST_CONFIDENCE or median.low is None:
        return Own(value, n=median.n)
    high = math.inf if median.high is None else median.high
    return Own(value, median.low, high, median.n)


def _expected_ratio(arm: ArmResult) -> Own:
    if not arm.time_to_target_pairs:
        return NOTHING
    value = arm.time_to_target_factor
    low, high = arm.time_to_target_low, arm.time_to_target_high
    # With a lower end, a missing upper one is infinite; without one there is no interval.
    if low is not None and high is None:
        high = math.inf
    return Own(math.inf if value is None else value, low, high, arm.time_to_target_pairs)


def _synergy(result: AblationResult, arm: ArmResult) -> Own:
    labels = set(arm.name.split(AND))
    estimates = (
        effect.estimate
        for effect in result.effects
        if (effect.response, effect.kind) == ("speed", "interaction")
        and set(effect.name.split(TIMES)) == labels
    )
    return _estimate(next(estimates, None))


def _percent(share: float) -> float:
    return 100 * share


_READERS: dict[FigureName, Callable[[ArmResult], Own]] = {
    "speed_up": lambda arm: _estimate(arm.speed_up),
    # `map` keeps low below high only for rising functions: both of these rise with the speed-up.
    "time_increase": lambda arm: _estimate(arm.speed_up).map(lambda s: 100 * (s - 1)),
    "time_saved": lambda arm: _estimate(arm.speed_up).map(lambda s: 100 * (1 - 1 / s)),
    "expected_time_ratio": _expected_ratio,
    "accuracy": lambda arm: _mean(arm.accuracy).map(_percent),
    "accuracy_gain": lambda arm: _estimate(arm.accuracy_gain).map(_percent),
    "macro_f1": lambda arm: _mean(arm.macro_f1).map(_percent),
    "epoch_s": lambda arm: _mean(arm.epoch_s),
    "peak_memory_gib": lambda arm: _median(arm.peak_memory_gib),
    "success_rate": lambda arm: Own(arm.success_rate, arm.success_low, arm.success_high, arm.n).map(
        _percent
    ),
    "epochs_to_convergence": lambda arm: _median(arm.epochs_to_convergence),
}
