"""Whether what was published and what was measured here agree, claim by claim.

An effect is a figure of an arm next to the base's, such as a speed-up, where 1 is no effect, or a
gain, where 0 is; all others are figures of one arm. Each claim gets one of these words:

    yes                   an effect: our 95 % interval holds the paper's figure, and excludes no
                          effect (where the paper claims none, it holds none, and nothing beyond
                          10 % of a time or a point of accuracy); a figure of one arm: our interval
                          holds the paper's; without an interval: ours is within 5 %
    in direction          an effect on the paper's side, beyond doubt, but of another size
    no                    an effect on the other side, beyond doubt, or one where the paper claims
                          none; a figure of one arm that our interval excludes
    not decided           the interval holds both gain and loss, and more than a little of either,
                          or there is none and the figures are apart
    not applicable here   a change of the arm has no effect, or cannot be run, on this device
    another scale         a figure of one arm, from a smaller profile or another device
    no figure             the source has none
    no runs               there is no figure of ours
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from tune_speed.core.records import Record, Status
from tune_speed.core.stats import finite_or_none
from tune_speed.core.text import counted, device_text
from tune_speed.experiments.ablation.design import AND, BASE, TIMES
from tune_speed.experiments.ablation.result import AblationResult, ArmResult
from tune_speed.experiments.replication.shipped import FULL
from tune_speed.study.replication import NO_EFFECT, ClaimConfig, FigureName, UnitName

Verdict = Literal[
    "not applicable here", "no runs", "no figure", "another scale", "yes", "in direction",
    "not decided", "no",
]  # fmt: skip
Reasoned = tuple[Verdict, str]
# Figures that are no further apart are the same: printed ones are ratios of rounded numbers.
TINY = 1e-9
# How far from no effect our interval may reach, where the paper claims none and we are to agree: 10
# % of a time, and a point of accuracy.
NEGLIGIBLE = {"×": 0.1, "%": 10.0, "points": 1.0}
# Share of the paper's figure within which a figure without an interval is called the same.
CLOSE = 0.05
ENDED_BADLY = (Status.OOM, Status.DIVERGED, Status.FAILED)


# The arm's field, where it is not the figure's name, and what makes the figure of it. All rise with
# it: low ends stay below high ones.
_FIELDS: Mapping[FigureName, tuple[str, Callable[[float], float]]] = {
    "time_increase": ("speed_up", lambda s: s - 1),
    "time_saved": ("speed_up", lambda s: 1 - 1 / s),
    "expected_time_ratio": ("time_to_target_factor", float),
}
# How many of a unit are one of the field's.
_SCALES: Mapping[UnitName, float] = {"%": 100.0, "points": 100.0, "GB": 2**30 / 1e9}
# Below it, the interval of a median is no interval to us: it is one of very few runs.
LEAST_CONFIDENCE = 0.95


class Own(NamedTuple):
    """A figure of ours, infinite where what it is over never happened, and its 95 % interval."""

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0


NOTHING = Own(None)


class Agreement(Record):
    """A published figure and ours."""

    claim: str
    source: str
    part: str
    arm: str
    figure: str
    unit: str
    paper: float | None
    ours: float | None
    """None: there is none, or it is infinite."""
    is_infinite: bool = False
    """Whether ours is infinite: it never happened in the runs that it is over."""
    low: float | None
    """Lower end of our 95 % interval; None: there is none."""
    high: float | None
    """Upper end of it; None with a lower end: infinite."""
    n: int
    ratio: float | None
    """Ours over the paper's; None without either, for gains, which are differences, and where the
    paper's is 0."""
    agrees: Verdict
    caveats: tuple[str, ...]


def agreements(
    claims: Sequence[ClaimConfig], results: Mapping[str, AblationResult], *, profile: str
) -> tuple[Agreement, ...]:
    """Returns each claim next to the figure of ours in `results`, which are by part."""
    found = []
    for claim in claims:
        result, own, caveats = results.get(claim.ours.part), NOTHING, list[str]()
        arm = None if result is None else find_arm(result, claim.ours.arm)
        if result is None or arm is None or arm.not_applicable is not None:
            agrees, reason = _without_arm(claim, result, profile)
        else:
            own = own_figure(result, arm, claim)
            agrees, reason = verdict(claim, own, _another_scale(claim, result, profile))
            if agrees == "no runs" and arm.n:
                reason = f"no such figure from {counted(arm.n, 'run')} of `{arm.name}`"
            caveats = list(_run_caveats(claim, result, arm))
        caveats = list(dict.fromkeys(filter(None, (reason, *claim.defects, *caveats))))
        found.append(_row(claim, own, agrees, caveats))
    return tuple(found)


def _row(claim: ClaimConfig, own: Own, agrees: Verdict, caveats: Sequence[str]) -> Agreement:
    # Gains are differences: a ratio of them says nothing.
    is_gain, ratio = NO_EFFECT.get(claim.ours.figure) == 0, None
    if own.value is not None and claim.paper and abs(claim.paper) >= TINY and not is_gain:
        ratio = own.value / claim.paper
    return Agreement(
        **claim.ours.model_dump(),
        **claim.model_dump(include={"source", "paper"}),
        claim=claim.says,
        unit=claim.shown_unit,
        ours=finite_or_none(own.value),
        is_infinite=own.value == math.inf,
        low=finite_or_none(own.low),
        high=finite_or_none(own.high),
        n=own.n,
        ratio=finite_or_none(ratio),
        agrees=agrees,
        caveats=tuple(caveats),
    )


def _without_arm(claim: ClaimConfig, result: AblationResult | None, profile: str) -> Reasoned:
    if result is None:
        return "no runs", f"this part was not begun, or profile `{profile}` leaves it out"
    if reasons := reasons_against(result, claim.ours.arm):
        return "not applicable here", "; ".join(reasons)
    return "no runs", f"profile `{profile}` leaves this arm out"


def _another_scale(claim: ClaimConfig, result: AblationResult, profile: str) -> str:
    figure = claim.ours.figure
    if figure in NO_EFFECT:
        return ""
    if profile != FULL:
        return f"profile `{profile}` is another scale"
    if figure == "epoch_s":
        return f"seconds of another device: ours is {device_text(result.device)}"
    if figure == "peak_memory_gib" and result.device.startswith("cpu"):
        return "ours is the main memory of the process, not a GPU's"
    return ""


def verdict(claim: ClaimConfig, own: Own, unlike: str = "") -> Reasoned:
    """`unlike` is why ours is of another scale; empty where it is not."""
    if own.value is None:
        return "no runs", ""
    paper = claim.paper
    if paper is None:
        return "no figure", ""
    if unlike:
        return "another scale", unlike
    none = NO_EFFECT.get(claim.ours.figure)
    if own.low is None or own.high is None:
        is_same_side = none is None or paper == own.value
        is_same_side |= none is not None and (paper - none) * (own.value - none) > 0
        if is_same_side and abs(own.value - paper) <= CLOSE * abs(paper):
            return "yes", f"within {CLOSE:.0%}: ours has no interval (n = {own.n})"
        return "not decided", f"ours has no interval (n = {own.n})"
    is_inside = own.low <= paper <= own.high
    if none is None:
        return ("yes" if is_inside else "no"), ""
    return _effect_verdict(paper - none, own, none, NEGLIGIBLE[claim.shown_unit])


def _effect_verdict(paper: float, own: Own, none: float, margin: float) -> Reasoned:
    """Of the paper's effect and ours; up to `margin` from no effect is next to none."""
    assert own.value is not None and own.low is not None and own.high is not None
    low, high = own.low - none, own.high - none
    is_decided = low > 0 or high < 0
    if abs(paper) < TINY:
        if is_decided:
            return "no", ""
        if max(high, -low) <= margin + TINY:
            return "yes", ""
        return "not decided", "our interval holds no effect, but large ones too"
    is_inside = low <= paper <= high
    # A wide interval agrees with everything: holding the paper's figure proves nothing here.
    if not is_decided:
        too = ", and the paper's figure too" if is_inside else ""
        return "not decided", f"our interval holds no effect{too}"
    if paper * (own.value - none) <= 0:
        return "no", ""
    return ("yes" if is_inside else "in direction"), ""


def _run_caveats(claim: ClaimConfig, result: AblationResult, arm: ArmResult) -> Iterator[str]:
    base = result.arm(BASE) if claim.ours.figure in NO_EFFECT else None
    for each in [arm] if base is None or base.name == arm.name else [arm, base]:
        for status in ENDED_BADLY:
            if count := each.statuses.get(status, 0):
                yield f"{count} of {counted(each.n, 'run')} of `{each.name}` ended {status.value}"
        if each.is_lr_at_edge:
            yield f"`{each.name}`: the best learning rate is at the end of those tried"
        yield from each.notes


# --- Ours


def find_arm(result: AblationResult, name: str) -> ArmResult | None:
    labels = set(name.split(AND))
    return next((arm for arm in result.arms if set(arm.name.split(AND)) == labels), None)


def own_figure(result: AblationResult, arm: ArmResult, claim: ClaimConfig) -> Own:
    figure = claim.ours.figure
    if figure == "synergy":
        return _synergy(result, arm)
    name, change = _FIELDS.get(figure, (figure, float))
    value, low, high = arm.ends(name)
    if value is None:
        return NOTHING
    field = getattr(arm, name)
    found = {"value": value, "low": low, "high": high}
    is_sure = getattr(field, "confidence", 1.0) >= LEAST_CONFIDENCE
    if not is_sure or None in found.values() or low == math.inf:
        found = {"value": value}
    scale = _SCALES.get(claim.shown_unit, 1.0)
    shown = {end: scale * change(each) for end, each in found.items() if each is not None}
    pairs = arm.time_to_target_pairs if name == "time_to_target_factor" else arm.n
    return Own(**shown, n=getattr(field, "n", pairs))


def _synergy(result: AblationResult, arm: ArmResult) -> Own:
    labels = set(arm.name.split(AND))
    for effect in result.effects:
        is_of_speed = (effect.response, effect.kind) == ("speed", "interaction")
        if is_of_speed and set(effect.name.split(TIMES)) == labels:
            found = effect.estimate
            return Own(found.value, found.low, found.high, found.n)
    return NOTHING


def reasons_against(result: AblationResult, name: str) -> tuple[str, ...]:
    """A level that cannot be run here is among the result's arms; combinations with it are not."""
    against = {arm.name: arm.not_applicable for arm in result.arms if arm.not_applicable}
    if whole := find_arm(result, name):
        return tuple(filter(None, [whole.not_applicable]))
    found = [(label, against[label]) for label in name.split(AND) if label in against]
    return tuple(f"`{label}`: {why}" for label, why in found)
