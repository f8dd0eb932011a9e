"""The notes below the tables of an ablation: what a figure means, and what limits the trust."""

from collections.abc import Iterator, Mapping, Sequence

from tune_speed.core.records import CLOCK_WORDS, Status, Timing
from tune_speed.core.text import INFINITE, counted, factor, percent
from tune_speed.experiments.ablation.design import Design
from tune_speed.experiments.ablation.effects import Estimate, Kind
from tune_speed.experiments.ablation.result import AblationResult, EffectResult

USUAL = (Status.REACHED, Status.MISSED)
MOST_P_VALUE = 0.05
ADDED: Mapping[Design, str] = {
    "leave-one-out": "added last, to all the others",
    "cumulative": "added to the step before",
}
KINDS: Mapping[Kind, str] = {
    "alone": "alone, against the base",
    "together": "together, against the base",
    "added": "added to others",
    "main": "main effects",
    "interaction": "interactions",
}
KIND_NOTES: Mapping[Kind, str] = {
    "added": "Added: an arm against the same one without that change, which need not be what the"
    " change would do alone.",
    "main": "A main effect is the mean over all settings of the other axes.",
    "interaction": "An interaction is the speed-up together over the product of the speed-ups"
    " alone: above 1 they help one another, below 1 they overlap.",
}


def kind_words(kind: Kind, design: Design) -> str:
    return ADDED.get(design, KINDS[kind]) if kind == "added" else KINDS[kind]


def arm_notes(result: AblationResult) -> tuple[str, ...]:
    return (
        *_missing(result),
        *_tuning(result),
        *_meaning(result),
        *dict.fromkeys(note for arm in result.arms for note in arm.notes),
    )


def effect_notes(result: AblationResult) -> tuple[str, ...]:
    notes = [note for kind, note in KIND_NOTES.items() if result.effects_of(kind)]
    if result.design == "cumulative" and KIND_NOTES["added"] in notes:
        notes.insert(1, "The first step is the one alone.")
    return (
        *interaction_notes(result.effects),
        *notes,
        "Speeds are factors of the time per epoch, others differences;"
        f" {percent(result.confidence)} intervals by Student's t over seeds as blocks, none where"
        " all seeds agree or there is one; p two-sided, Holm's over all effects of a response; n:"
        " seeds that have all arms of the effect.",
    )


def interaction_notes(effects: Sequence[EffectResult]) -> tuple[str, ...]:
    """Decided is what has a p-value, corrected by Holm, below 0.05."""
    groups: dict[str, list[str]] = {"They help one another": [], "They overlap": []}
    undecided = []
    for effect in effects:
        if effect.kind != "interaction" or effect.response != "speed":
            continue
        found = effect.estimate
        p_value = found.p_value if found.p_holm is None else found.p_holm
        if found.value is None or p_value is None or p_value >= MOST_P_VALUE:
            undecided.append(effect.name)
        else:
            words = "They help one another" if found.value > 1 else "They overlap"
            groups[words].append(f"{effect.name} {factor_text(found)}")
    groups["Whether they help one another or overlap is not decided"] = undecided
    return tuple(f"{words}: {'; '.join(names)}." for words, names in groups.items() if names)


def factor_text(found: Estimate) -> str:
    ends = interval_text(found)
    return factor(found.value) + (f" ({ends})" if ends else "")


def interval_text(found: Estimate, *, digits: int = 2, sign: str = "") -> str:
    """Returns `1.80–1.94`, or an empty text without an interval; `∞` for a factor's missing end."""
    if found.low is None:
        return ""
    high = INFINITE if found.high is None else f"{found.high:{sign}.{digits}f}"
    joint = " to " if sign else "–"
    return f"{found.low:{sign}.{digits}f}{joint}{high}"


def _missing(result: AblationResult) -> Iterator[str]:
    reasons = dict.fromkeys(a.not_applicable for a in result.arms if a.not_applicable is not None)
    for reason in reasons:
        names = "; ".join(arm.name for arm in result.arms if arm.not_applicable == reason)
        yield f"Not applicable here ({reason}): {names}."
    if result.done_runs < result.planned_runs:
        yield f"{result.done_runs} of {result.planned_runs} runs are done."
    for arm in result.arms:
        broken = [f"{n} {s.value}" for s, n in arm.statuses.items() if s not in USUAL]
        if broken:
            why = f" ({'; '.join(arm.stop_reasons)})" if arm.stop_reasons else ""
            yield f"{arm.name}: of {counted(arm.n, 'run')} {', '.join(broken)}{why}."


def _tuning(result: AblationResult) -> Iterator[str]:
    if result.retune is None:
        yield "Nothing was re-tuned: arms have the base's learning rate, perhaps not their best."
    tuned = [arm for arm in result.arms if arm.lr_factor is not None]
    if not tuned:
        return
    tried = sorted({point.factor for arm in tuned for point in arm.tuning})
    by_factor: dict[str, list[str]] = {}
    for arm in tuned:
        chosen = f"×{arm.lr_factor:g}{'*' if arm.is_lr_at_edge else ''}"
        by_factor.setdefault(chosen, []).append(arm.name)
    words = "; ".join(f"{chosen}: {', '.join(names)}" for chosen, names in by_factor.items())
    factors = ", ".join(f"{factor:g}" for factor in tried)
    yield f"`{result.retune}` was re-tuned for each arm, times {factors}; {words}."
    if any(arm.is_lr_at_edge for arm in tuned):
        yield "* at the edge of what was tried: a better one may lie beyond."


def _meaning(result: AblationResult) -> Iterator[str]:
    yield (
        "Speed-up: base's time per epoch over the arm's, geometric mean over seeds that have both."
        f" Below a figure its {percent(result.confidence)} interval, or ± its standard deviation"
        " over runs."
    )
    if any(arm.s_mixed for arm in result.arms):
        yield "S_mixed: the same of the arm with the base's precision, and the arm."
    yield (
        "To target: median (a miss is infinite), and expected time with restarts. Sooner: base's"
        " time to target over the arm's. Met: hits of runs (Wilson's interval); runs that failed,"
        " diverged or ran out of memory are misses, and in no mean. GiB: median of the runs' peaks."
    )
    if result.mode == "anytime":
        yield (
            "Runs stop where they meet the target, so that accuracies at the end hardly tell arms"
            " apart."
        )
    kinds = [text for timing, text in CLOCK_WORDS.items() if result.timing.get(timing)]
    if kinds:
        others = f" ({', '.join(result.cotenants)})" if result.cotenants else ""
        yield f"Clock: {'; '.join(kinds)}{others}."
    if result.timing.get(Timing.ISOLATED):
        yield (
            "Runs of one kind share a step time: intervals of speed lack what its measurement"
            " varies by."
        )
