"""Step times of several windows as one: the machine's drift taken out, and how sure the mean is.

A window's step time is the product of a kind's own time, of the machine's factor at that moment,
which all kinds of one place share, and of chance: log s = log kind + log factor + e. The reference
step beside it shows the factor. So all kinds are told at one speed of the machine, the median of
what the study saw of it, whenever they were measured, and their order is not that of the moments.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tune_speed.core.records import CLOCKED, RunResult, StepTime, Timing, TrialRecord
from tune_speed.core.stats import student_quantile
from tune_speed.core.words import Note, NoteKind

PRIOR_SPREAD, PRIOR_WINDOWS = 0.02, 6
"""Standard deviation of a window's logarithm beyond what its blocks show, and what it weighs."""
Z = 1.96
"""Of the 95 % intervals that windows have of their own."""


def pooled(
    windows: Iterable[StepTime], *, study: str = "", usual: Mapping[str, float] | None = None
) -> dict[str, StepTime]:
    """Returns one step time a key, of all its windows, at one speed of the machine a place.

    The speed is that of a reference step of `usual[place]` seconds, elsewhere of the median one in
    windows of `study`, of all windows where it has none.
    Disturbed windows count only where a key has no others; so do those without a reference.
    The mean is that of logarithms; its 95 % interval is Student's, from what single windows say of
    themselves and from their spread, which all keys of a place share.
    """
    places: dict[str, dict[str, list[StepTime]]] = defaultdict(lambda: defaultdict(list))
    for window in windows:
        places[window.place][window.key].append(window)
    found: dict[str, StepTime] = {}
    for place, kinds in places.items():
        every = [each for group in kinds.values() for each in group]
        usual_s = (usual or {}).get(place) or _usual_reference_s(every, f"{study}/")
        chosen = {key: _best(group) for key, group in kinds.items()}
        values = {key: [at_speed(each, usual_s) for each in chosen[key]] for key in kinds}
        spread, degrees = _spread(chosen, values)
        found |= {key: _one(chosen[key], values[key], usual_s, spread, degrees) for key in kinds}
    return found


def _usual_reference_s(windows: Sequence[StepTime], prefix: str) -> float | None:
    """Returns the reference step at the machine's usual speed [s]; None: nobody measured it."""
    seen = [each for each in windows if each.reference_s]
    for group in (
        [each for each in seen if each.measured_in.startswith(prefix) and not each.disturbed],
        [each for each in seen if not each.disturbed],
        seen,
    ):
        if group:
            return statistics.median(each.reference_s or 0.0 for each in group)
    return None


def _best(windows: Sequence[StepTime]) -> list[StepTime]:
    seen = [each for each in windows if each.reference_s] or windows
    return [each for each in seen if not each.disturbed] or list(seen)


def at_speed(window: StepTime, reference_s: float | None) -> float:
    """Returns the logarithm of a window's step time at the machine's speed of `reference_s`."""
    if not reference_s or not window.reference_s:
        return math.log(window.step_s)
    return math.log(window.step_s * reference_s / window.reference_s)


def _spread(
    chosen: Mapping[str, Sequence[StepTime]], values: Mapping[str, Sequence[float]]
) -> tuple[float, int]:
    squares = sum(
        (len(group) - 1) * statistics.variance(group) for group in values.values() if len(group) > 1
    )
    degrees = sum(len(group) - 1 for group in values.values())
    within = [_own_variance(each) for key in chosen for each in chosen[key] if len(chosen[key]) > 1]
    beyond = max(0.0, squares - degrees * (statistics.fmean(within) if within else 0.0))
    total = PRIOR_WINDOWS + degrees
    return (PRIOR_WINDOWS * PRIOR_SPREAD**2 + beyond) / total, total


def _own_variance(window: StepTime) -> float:
    return ((window.high_s - window.low_s) / (2 * Z * window.step_s)) ** 2


def _one(
    windows: Sequence[StepTime],
    values: Sequence[float],
    reference_s: float | None,
    spread: float,
    degrees: int,
) -> StepTime:
    own = statistics.fmean(map(_own_variance, windows))
    half = student_quantile(degrees) * math.sqrt((spread + own) / len(windows))
    step_s, latest = math.exp(statistics.fmean(values)), windows[-1]
    is_exact = reference_s is None and len(windows) == 1
    return latest.model_copy(
        update={
            "step_s": latest.step_s if is_exact else step_s,
            "low_s": latest.low_s if is_exact else step_s * math.exp(-half),
            "high_s": latest.high_s if is_exact else step_s * math.exp(half),
            "num_steps": sum(each.num_steps for each in windows),
            "reference_s": reference_s,
            "num_windows": len(windows),
            "power_w": mean_power_of(windows),
        }
    )


def mean_power_of(windows: Iterable[StepTime]) -> float | None:
    """Returns the mean power of those windows in which it is known [W]; None: in none."""
    powers = [each.power_w for each in windows if each.power_w is not None]
    return statistics.fmean(powers) if powers else None


def power_of_run(
    step_times: Sequence[StepTime], shape_steps: Sequence[tuple[int, int]]
) -> float | None:
    """Returns Σ n·s·P / Σ n·s over stretches of n steps of s seconds at P watts [W].

    None where a power is not known.
    """
    stretches = shape_steps or [(number, 1) for number in range(len(step_times))]
    energy_j = total_s = 0.0
    for number, steps in stretches:
        each = step_times[number]
        if each.power_w is None:
            return None
        energy_j += steps * each.step_s * each.power_w
        total_s += steps * each.step_s
    return energy_j / total_s if total_s else None


def with_window(known: StepTime, window: StepTime) -> StepTime:
    """Returns a pooled step time with one more window, at the speed at which it was pooled."""
    if window.disturbed and not known.disturbed:
        return known
    n = 0 if known.disturbed and not window.disturbed else known.num_windows
    value = at_speed(window, known.reference_s)
    step_s = math.exp((n * math.log(known.step_s) + value) / (n + 1))
    scale = step_s / known.step_s
    ends = {"low_s": known.low_s * scale, "high_s": known.high_s * scale}
    steps = known.num_steps * bool(n) + window.num_steps
    more = {"num_windows": n + 1, "num_steps": steps, "reference_s": known.reference_s}
    power_w = mean_power_of([*[known] * n, window])
    return window.model_copy(update={"step_s": step_s, **ends, **more, "power_w": power_w})


def reclocked(record: TrialRecord, step_times: Mapping[str, StepTime]) -> TrialRecord:
    """Returns the record with its clock made of these step times; itself where they are the same.

    t = init + Σ steps × step time, at each evaluation. A ragged step at an epoch's end counts by
    its samples, as it did before.
    """
    runs = tuple(_reclocked_run(run, step_times) for run in record.runs)
    return record if runs == record.runs else record.model_copy(update={"runs": runs})


def _reclocked_run(run: RunResult, step_times: Mapping[str, StepTime]) -> RunResult:
    new = tuple(step_times.get(each.key, each) for each in run.step_times)
    if run.timing not in CLOCKED or new == run.step_times:
        return run

    def at(step: int, train_s: float) -> float:
        return run.init_s + (train_s - run.init_s) * _ratio(run, new, step)

    # Before the first step nothing is made of step times.
    moved = [
        each if each.step == 0 else each.model_copy(update={"train_s": at(each.step, each.train_s)})
        for each in run.evaluations
    ]
    times = {old.train_s: now.train_s for old, now in zip(run.evaluations, moved, strict=True)}
    hit_s, train_s = run.time_to_target_s, at(run.steps, run.clocks.train_s)
    ratio = _ratio(run, new, sum(steps for _, steps in run.shape_steps))
    return run.model_copy(
        update={
            "evaluations": tuple(moved),
            "time_to_target_s": None if hit_s is None else times.get(hit_s, at(run.steps, hit_s)),
            "clocks": run.clocks.model_copy(update={"train_s": train_s}),
            "images_per_s": run.samples / train_s if run.images_per_s and train_s else None,
            "step_time_ms": None if run.step_time_ms is None else run.step_time_ms * ratio,
            "slowdown": (run.shared_train_s or 0.0) / train_s if run.slowdown and train_s else None,
            "step_times": new,
            "timing": timing_of(new),
            "note": why_reclocked(run, new),
        }
    )


def _ratio(run: RunResult, new: Sequence[StepTime], num_steps: int) -> float:
    left, then_s, now_s = num_steps, 0.0, 0.0
    for number, steps in run.shape_steps or ((0, max(1, num_steps)),):
        taken = min(left, steps)
        left -= taken
        then_s += taken * run.step_times[number].step_s
        now_s += taken * new[number].step_s
    return now_s / then_s if then_s else new[0].step_s / run.step_times[0].step_s


def timing_of(step_times: Iterable[StepTime]) -> Timing:
    """Returns what a clock made of these step times is."""
    is_disturbed = any(each.disturbed for each in step_times)
    return Timing.DISTURBED if is_disturbed else Timing.ISOLATED


def why_reclocked(run: RunResult, new: Sequence[StepTime]) -> tuple[Note, ...]:
    """Returns the run's notes with what a step took at first, and of how many windows it is now."""
    kept = tuple(each for each in run.note if each.kind is not NoteKind.RECLOCKED)
    before = next((each for each in run.note if each.kind is NoteKind.RECLOCKED), None)
    now_ms = 1000 * new[0].step_s
    was_ms = before.figures["was_ms"] if before else 1000 * run.step_times[0].step_s
    if f"{was_ms:.3g}" == f"{now_ms:.3g}":
        return kept
    figures = {"was_ms": was_ms, "now_ms": now_ms, "windows": sum(w.num_windows for w in new)}
    return (*kept, Note.of(NoteKind.RECLOCKED, **figures))
