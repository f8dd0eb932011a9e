"""A claim's figures: the published one, with its known faults, and what an ablation found."""

import difflib
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, Never

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.ablation.design import AND, TIMES
from tune_speed.experiments.ablation.effects import Estimate
from tune_speed.experiments.ablation.result import AblationResult, ArmResult, Figure, Median
from tune_speed.experiments.published.published import PublishedFigure, published_figures
from tune_speed.experiments.published.side_by_side import GB_PER_GIB
from tune_speed.study import replication as spec

PLACE = ("source", "table", "model", "dataset", "setting", "metric")
_UNITS: dict[str, spec.UnitName] = {
    "x": "×", "%": "%", "s": "s", "h": "h", "GB": "GB", "epochs": "epochs",
}  # fmt: skip
_SECONDS = {"s": 1.0, "h": 3600.0}
_RATIOS: Mapping[spec.FigureName, Callable[[float, float], float]] = {
    "time_increase": lambda base, this: 100 * (base / this - 1),
    "time_saved": lambda base, this: 100 * (1 - this / base),
}


class PaperFigure(NamedTuple):
    """A figure of a source document."""

    value: float | None
    unit: spec.UnitName
    source: str
    defects: tuple[str, ...]


def paper_figure(claim: spec.ClaimConfig, *, path: str = "replication.claims") -> PaperFigure:
    """Returns the figure of a claim, looked up where it is not given.

    With T the figure of `published` and B that of its `over`: B / T for a ratio, T - B for a gain,
    100 (B / T - 1) for `time_increase`, and 100 (1 - T / B) for `time_saved`.

    Raises: ConfigError if there is no such figure, it is no number, or it is in a unit that ours
    cannot be put into. `path` is the claim's, for messages.
    """
    own = (claim.defect,) if claim.defect else ()
    if claim.published is None:
        unit = claim.unit or spec.UNITS[claim.ours.figure][0]
        return PaperFigure(claim.paper, unit, claim.source, own)
    this = _looked_up(claim.published, path)
    place = filter(None, (this.row.source, this.row.table, this.row.setting))
    source = claim.source or ", ".join(place)
    value, unit, more = (_alone if claim.published.over is None else _against)(claim, this, path)
    if claim.unit not in (None, unit):
        _refuse(f"must be in `unit`, which is {claim.unit}", unit, path, "Leave out `unit`.")
    return PaperFigure(value, unit, source, tuple(dict.fromkeys([*own, *more])))


_Value = tuple[float, spec.UnitName, tuple[str, ...]]


class _Looked(NamedTuple):
    row: PublishedFigure
    value: float
    unit: str
    """Of the published figures; seconds where a time was divided by epochs."""
    defects: tuple[str, ...]


def _looked_up(published: spec.PublishedConfig, path: str) -> _Looked:
    row = _row(published, path)
    value, unit, rows = _number(row, path), row.unit, [row]
    if published.per_epoch:
        rows.append(_row(published.model_copy(update={"metric": "epochs"}), path))
        seconds = _SECONDS.get(row.unit)
        if seconds is None:
            _refuse("must be a time, to be divided by epochs", row.printed, path)
        value, unit = value * seconds / _number(rows[1], path), "s"
    return _Looked(row, value, unit, tuple(each.known_defect for each in rows if each.known_defect))


def _alone(claim: spec.ClaimConfig, this: _Looked, path: str) -> _Value:
    figure, metric = claim.ours.figure, this.row.metric
    is_per_epoch = claim.published is not None and claim.published.per_epoch
    if figure == "epoch_s" and metric != "time_per_epoch" and not is_per_epoch:
        _refuse("must be the time of an epoch", metric, path, "Try `per_epoch: true`.")
    unit = _UNITS.get(this.unit)
    if unit is None or unit not in spec.UNITS[figure]:
        must = f"must be in {' or '.join(spec.UNITS[figure])} to be compared with `{figure}`"
        _refuse(must, this.unit or "no unit", path, "Try `over`, or a literal `paper`.")
    return this.value, unit, this.defects


def _against(
    claim: spec.ClaimConfig, this: _Looked, path: str
) -> tuple[float, spec.UnitName, tuple[str, ...]]:
    published, figure = claim.published, claim.ours.figure
    assert published is not None and published.over is not None
    model = published.over_model or published.model
    base = _looked_up(
        published.model_copy(update={"setting": published.over, "model": model}), path
    )
    # Divided by its epochs, a time no longer depends on how many there were.
    doubts = () if published.per_epoch else _other_epochs(published, model)
    defects = (*base.defects, *this.defects, *doubts)
    if figure == "accuracy_gain" and this.unit == "%":
        # As printed: 92.8 - 93 is -0.2, not -0.20000000000000284.
        return round(this.value - base.value, 9), "points", defects
    if this.value <= 0 or base.value <= 0 or this.unit == "%":
        _refuse("must be more than 0, and no share, for a ratio", this.row.printed, path)
    is_ratio = spec.UNITS[figure] == ("×",)
    if not is_ratio and figure not in _RATIOS:
        _refuse(f"must have no `over` with `{figure}`, which is no ratio", None, path)
    ratio = base.value / this.value if is_ratio else _RATIOS[figure](base.value, this.value)
    return ratio, spec.UNITS[figure][0], defects


def _other_epochs(published: spec.PublishedConfig, over_model: str) -> tuple[str, ...]:
    this = published.model_copy(update={"metric": "epochs"})
    other = this.model_copy(update={"setting": published.over, "model": over_model})
    epochs = [[figure.value for figure in _matching(each)] for each in (other, this)]
    if [] in epochs or epochs[0] == epochs[1]:
        return ()
    return (f"the two ran {epochs[0][0]} and {epochs[1][0]} epochs",)


def _row(published: spec.PublishedConfig, path: str) -> PublishedFigure:
    found = _matching(published)
    if len(found) == 1:
        return found[0]
    given = _place_text(published)
    if found:
        _refuse("must be the place of one figure, but several have it", given, path)
    return _refuse("must be the place of a published figure", given, path, _nearest(published))


def _matching(published: spec.PublishedConfig) -> list[PublishedFigure]:
    return [f for f in published_figures() if _place(f) == _place(published)]


def _place(of: PublishedFigure | spec.PublishedConfig) -> list[str]:
    return [getattr(of, column) for column in PLACE]


def _nearest(published: spec.PublishedConfig) -> str:
    def likeness(figure: PublishedFigure) -> float:
        pairs = zip(_place(figure), _place(published), strict=True)
        return sum(difflib.SequenceMatcher(None, a, b).ratio() if a or b else 1 for a, b in pairs)

    nearest = sorted(published_figures(), key=likeness, reverse=True)[:3]
    return f"Nearest are {'; '.join(map(_place_text, nearest))}."


def _place_text(of: PublishedFigure | spec.PublishedConfig) -> str:
    return "{" + ", ".join(f"{c}: {v}" for c, v in zip(PLACE, _place(of), strict=True) if v) + "}"


def _number(row: PublishedFigure, path: str) -> float:
    number = row.number
    return _refuse("must be a number", row.printed, path) if number is None else number


def _refuse(must: str, given: str | None, path: str, hint: str | None = None) -> Never:
    raise ConfigError.of(f"{path}.published", must, given=given, hint=hint)


FROM_SECONDS = {"s": 1.0, "min": 1 / 60, "h": 1 / 3600}
# Below it, the interval of a median is no interval to us: it is one of very few runs.
LEAST_CONFIDENCE = 0.95


class Own(NamedTuple):
    """One figure of ours, in the first of the units that it can have."""

    value: float | None
    """Infinite where what it is over never happened; None: there is none."""
    low: float | None = None
    """Lower end of the 95 % interval; None: there is none."""
    high: float | None = None
    n: int = 0

    def map(self, change: Callable[[float], float]) -> "Own":
        """Returns the figure with a rising function of value and ends."""
        value, low, high = (None if each is None else change(each) for each in self[:3])
        return Own(value, low, high, self.n)


NOTHING = Own(None)


def no_effect(figure: spec.FigureName) -> float | None:
    """Returns what a figure is where the arm is as the base: 1 or 0; None for those of one arm."""
    if figure not in spec.AGAINST_BASE:
        return None
    return 0.0 if figure in ("time_increase", "time_saved", "accuracy_gain") else 1.0


def find_arm(result: AblationResult, name: str) -> ArmResult | None:
    labels = set(name.split(AND))
    return next((arm for arm in result.arms if set(arm.name.split(AND)) == labels), None)


def own_figure(
    result: AblationResult, arm: ArmResult, figure: spec.FigureName, unit: spec.UnitName
) -> Own:
    own = _synergy(result, arm) if figure == "synergy" else _READERS[figure](arm)
    if figure == "epoch_s":
        return own.map(lambda value: value * FROM_SECONDS[unit])
    if unit == "GB":
        return own.map(lambda value: value * GB_PER_GIB)
    return own


def reasons_against(result: AblationResult, name: str) -> tuple[str, ...]:
    """A level that cannot be run here is among the result's arms; combinations with it are not."""
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


_READERS: dict[spec.FigureName, Callable[[ArmResult], Own]] = {
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
