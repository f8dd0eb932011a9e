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
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from tune_speed.core.records import Record, Status
from tune_speed.core.stats import finite_or_none
from tune_speed.core.text import counted, device_text
from tune_speed.experiments.ablation.design import BASE
from tune_speed.experiments.ablation.result import AblationResult, ArmResult
from tune_speed.experiments.replication import figures
from tune_speed.experiments.replication.shipped import FULL
from tune_speed.study.replication import AGAINST_BASE, ClaimConfig, FigureName, UnitName

Verdict = Literal[
    "not applicable here",
    "no runs",
    "no figure",
    "another scale",
    "yes",
    "in direction",
    "not decided",
    "no",
]
# Figures that are no further apart are the same: printed ones are ratios of rounded numbers.
TINY = 1e-9
# How far from no effect our interval may reach, where the paper claims none and we are to agree: 10
# % of a time, and a point of accuracy.
NEGLIGIBLE: dict[UnitName, float] = {"×": 0.1, "%": 10.0, "points": 1.0}
# Share of the paper's figure within which a figure without an interval is called the same.
CLOSE = 0.05
ENDED_BADLY = (Status.OOM, Status.DIVERGED, Status.FAILED)


class Agreement(Record):
    """A published figure and ours."""

    claim: str
    source: str
    part: str
    arm: str
    figure: FigureName
    unit: UnitName
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


class CheckRow(Record):
    """A question that needs no training, and its answers."""

    check: str
    question: str
    expected: str
    ours: str
    agrees: str
    source: str = ""


class Outcome(Record):
    """The published figures of an experiment next to ours."""

    name: str
    items: tuple[int, ...]
    """Numbers of the experiment on the sheet of the source documents."""
    title: str
    question: str
    profile: str
    about: str
    """What is smaller than in the source, in one sentence; empty for `full`."""
    overrides: tuple[str, ...] = ()
    devices: tuple[str, ...]
    seeds: tuple[int, ...]
    done_runs: int
    planned_runs: int
    rows: tuple[Agreement, ...]
    checks: tuple[CheckRow, ...]
    caveats: tuple[str, ...]


def agreements(
    claims: Sequence[ClaimConfig],
    results: Mapping[str, AblationResult],
    *,
    profile: str,
    to_come: Collection[str] = (),
) -> tuple[Agreement, ...]:
    """Raises: ConfigError for a claim whose published figure cannot be found."""
    found = []
    for position, claim in enumerate(claims):
        paper = figures.paper_figure(claim, path=claim_path(position))
        result = results.get(claim.ours.part)
        arm = None if result is None else figures.find_arm(result, claim.ours.arm)
        own, more = figures.NOTHING, list[str]()
        if result is None or arm is None or arm.not_applicable is not None:
            agrees, reason = _without_arm(claim, result, profile=profile, to_come=to_come)
        else:
            own = figures.own_figure(result, arm, claim.ours.figure, paper.unit)
            agrees, reason = _verdict(claim, paper, own, arm, result, profile=profile)
            more = list(_run_caveats(claim, result, arm))
        reasons = [*([reason] if reason else []), *paper.defects, *more]
        found.append(_agreement(claim, paper, own, agrees, reasons))
    return tuple(found)


def claim_path(position: int) -> str:
    return f"replication.claims[{position}]"


def _agreement(
    claim: ClaimConfig,
    paper: figures.PaperFigure,
    own: figures.Own,
    agrees: Verdict,
    caveats: Sequence[str],
) -> Agreement:
    ratio = None
    # Gains are differences: a ratio of them says nothing.
    is_gain = figures.no_effect(claim.ours.figure) == 0
    if own.value is not None and paper.value and abs(paper.value) >= TINY and not is_gain:
        ratio = own.value / paper.value
    return Agreement(
        claim=claim.says,
        source=paper.source,
        **claim.ours.model_dump(include={"part", "arm", "figure"}),
        unit=paper.unit,
        paper=paper.value,
        ours=finite_or_none(own.value),
        is_infinite=own.value == math.inf,
        low=finite_or_none(own.low),
        high=finite_or_none(own.high),
        n=own.n,
        ratio=finite_or_none(ratio),
        agrees=agrees,
        caveats=tuple(dict.fromkeys(caveats)),
    )


Reasoned = tuple[Verdict, str]


def _without_arm(
    claim: ClaimConfig, result: AblationResult | None, *, profile: str, to_come: Collection[str]
) -> Reasoned:
    if claim.ours.part in to_come:
        return "no runs", "this part was not begun"
    if result is None:
        return "no runs", f"profile `{profile}` leaves this part out"
    reasons = figures.reasons_against(result, claim.ours.arm)
    if reasons:
        return "not applicable here", "; ".join(reasons)
    return "no runs", f"profile `{profile}` leaves this arm out"


def _verdict(
    claim: ClaimConfig,
    paper: figures.PaperFigure,
    own: figures.Own,
    arm: ArmResult,
    result: AblationResult,
    *,
    profile: str,
) -> Reasoned:
    if own.value is None:
        return (
            "no runs",
            f"no such figure from {counted(arm.n, 'run')} of `{arm.name}`" if arm.n else "",
        )
    if paper.value is None:
        return "no figure", ""
    none = figures.no_effect(claim.ours.figure)
    if none is not None:
        return effect_verdict(paper.value, own, no_effect=none, margin=NEGLIGIBLE[paper.unit])
    unlike = _another_scale(claim.ours.figure, result, profile)
    return ("another scale", unlike) if unlike else figure_verdict(paper.value, own)


def _another_scale(figure: FigureName, result: AblationResult, profile: str) -> str:
    if profile != FULL:
        return f"profile `{profile}` is another scale"
    if figure == "epoch_s":
        return f"seconds of another device: ours is {device_text(result.device)}"
    if figure == "peak_memory_gib" and result.device.startswith("cpu"):
        return "ours is the main memory of the process, not a GPU's"
    return ""


def effect_verdict(paper: float, own: figures.Own, *, no_effect: float, margin: float) -> Reasoned:
    """`margin` is how far from `no_effect` is still next to none."""
    assert own.value is not None
    lower, higher = sorted((paper, own.value))
    same_side = lower > no_effect or higher < no_effect
    if own.low is None or own.high is None:
        return _without_interval(paper, own, is_same_side=same_side or paper == own.value)
    is_inside = own.low <= paper <= own.high
    is_decided = own.low > no_effect or own.high < no_effect
    if abs(paper - no_effect) < TINY:
        if is_decided:
            return "no", ""
        if max(own.high - no_effect, no_effect - own.low) <= margin + TINY:
            return "yes", ""
        return "not decided", "our interval holds no effect, but large ones too"
    # A wide interval agrees with everything: holding the paper's figure proves nothing here.
    if not is_decided:
        return "not decided", "our interval holds no effect" + (
            ", and the paper's figure too" if is_inside else ""
        )
    if not same_side:
        return "no", ""
    return ("yes", "") if is_inside else ("in direction", "")


def figure_verdict(paper: float, own: figures.Own) -> Reasoned:
    if own.low is None or own.high is None:
        return _without_interval(paper, own, is_same_side=True)
    return ("yes", "") if own.low <= paper <= own.high else ("no", "")


def _without_interval(paper: float, own: figures.Own, *, is_same_side: bool) -> Reasoned:
    assert own.value is not None
    is_close = abs(own.value - paper) <= CLOSE * abs(paper)
    if is_close and is_same_side:
        return "yes", f"within {CLOSE:.0%}: ours has no interval (n = {own.n})"
    return "not decided", f"ours has no interval (n = {own.n})"


def _run_caveats(claim: ClaimConfig, result: AblationResult, arm: ArmResult) -> Iterator[str]:
    base = result.arm(BASE) if claim.ours.figure in AGAINST_BASE else None
    for each in [arm] if base is None or base.name == arm.name else [arm, base]:
        for status in ENDED_BADLY:
            if count := each.statuses.get(status, 0):
                yield f"{count} of {counted(each.n, 'run')} of `{each.name}` ended {status.value}"
        if each.is_lr_at_edge:
            yield f"`{each.name}`: the best learning rate is at the end of those tried"
        yield from each.notes
