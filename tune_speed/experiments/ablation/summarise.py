"""Figures of an ablation from its records.

The response of speed is -ln of the time per epoch, so that a contrast's exponential is a speed-up;
seeds are blocks, see `effects`. A run that failed, diverged or ran out of memory is a miss, and
part of no mean.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from tune_speed.components.metrics import METRICS
from tune_speed.components.metrics.base import OF_RUN, epoch_s
from tune_speed.core import stats
from tune_speed.core.comparability import target_of
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.significance import LARGEST_LOG, compare, holm
from tune_speed.core.words import joined
from tune_speed.experiments.ablation import effects, result
from tune_speed.experiments.ablation.design import BASE, Arm, Axis
from tune_speed.experiments.certification.elimination import LEAST_PAIRS
from tune_speed.experiments.rerun import merged
from tune_speed.experiments.run_summary import CONFIDENCE, NO_FINAL, WHOLE, common_seeds

Reader = Callable[[RunResult], float | None]
# Runs whose figures are not those of a training.
BROKEN = (*NO_FINAL, Status.DIVERGED)


def summarise_arms(
    task: result.AblationTask,
    records: Mapping[str, Sequence[TrialRecord]],
    *,
    axes: Sequence[Axis],
    arms: Sequence[Arm],
    settings: Mapping[str, Mapping[str, Any]],
    workload: Mapping[str, Any],
    not_applicable: Mapping[str, str],
    tuning: Mapping[str, Sequence[result.TuningPoint]],
    lr_factors: Mapping[str, float],
) -> result.AblationResult:
    """Returns the figures of each arm and the effects of the model of all of them.

    `records` has the finished runs of each arm, one a record; arms may be missing. `axes` are what
    the arms that can be run here are made of; `arms` are all of the design, the base first, and
    those of `not_applicable`.
    """
    target = target_of(workload)
    together = {name: one for name, own in records.items() if (one := merged(own)) is not None}
    here = [arm for arm in arms if arm.name not in not_applicable]
    values = {response: _values(together, read) for response, read in READERS.items()}
    more = _against_base(together, [arm.name for arm in here], values)
    found = tuple(
        result.ArmResult(
            name=arm.name,
            settings=dict(settings[arm.name]),
            not_applicable=not_applicable.get(arm.name),
            lr_factor=lr_factors.get(arm.name),
            is_lr_at_edge=_is_at_edge(lr_factors.get(arm.name), tuning.get(arm.name, ())),
            tuning=tuple(tuning.get(arm.name, ())),
            **(_figures(together[arm.name]) if arm.name in together else {}),
            **more.get(arm.name, {}),
        )
        for arm in arms
    )
    return result.AblationResult(
        **dict(task),
        metric=target.metric,
        target=target.value,
        target_mode=target.mode,
        mode=workload["mode"],
        **_surroundings(together),
        confidence=CONFIDENCE,
        arms=found,
        effects=tuple(_effects(axes, here, values)) if arms[0] in here else (),
        planned_runs=task.seeds * len(here),
        done_runs=sum(arm.n for arm in found),
    )


def _surroundings(together: Mapping[str, TrialRecord]) -> dict[str, Any]:
    record = together.get(BASE) or next(iter(together.values()), None)
    runs = [run for own in together.values() for run in own.runs]
    names = ("workload_hash", "evaluated_on", "cpu_threads", "environment")
    known = {name: getattr(record, name) for name in names} if record else {}
    return {
        **known,
        "device": str(record.device) if record else "",
        "timing": dict(Counter(run.timing for run in runs)),
        "cotenants": tuple(sorted({name for run in runs for name in run.cotenants})),
    }


def _is_at_edge(factor: float | None, points: Sequence[result.TuningPoint]) -> bool | None:
    tried = {point.factor for point in points}
    return None if factor is None or len(tried) < 2 else factor in (min(tried), max(tried))


def _figures(record: TrialRecord) -> dict[str, Any]:
    whole = [run for run in record.runs if run.status not in BROKEN]
    memory = (run.peak_memory_gib for run in whole)
    found = stats.RunStatistics.of(record, confidence=CONFIDENCE)
    success, expected = found.success_rate, found.expected_interval
    reasons = (str(run.stop_reason) for run in record.runs if run.status not in WHOLE)
    return {
        "n": found.n,
        "statuses": dict(Counter(run.status for run in record.runs)),
        "hits": found.hits,
        "success_low": success.low,
        "success_high": success.high,
        **{name: _figure(whole, name) for name in result.MEANS},
        "peak_memory_gib": _median([gib for gib in memory if gib is not None]),
        "time_to_target_s": _median(found.times_s),
        "expected_s": stats.finite_or_none(found.expected_s),
        "expected_low_s": expected.low_s,
        "expected_high_s": expected.high_s,
        "epochs_to_convergence": _median([OF_RUN["epochs_to_convergence"](run) for run in whole]),
        "notes": tuple(dict.fromkeys(joined(run.note) for run in record.runs if run.note)),
        "stop_reasons": tuple(dict.fromkeys(reasons)),
    }


def _figure(runs: Sequence[RunResult], name: str) -> result.Figure:
    values = [value for run in runs if (value := OF_RUN[name](run)) is not None]
    if not values:
        return result.Figure()
    found = stats.mean_interval(
        values,
        confidence=CONFIDENCE,
        is_positive=name in result.RATES,
        is_share=METRICS[name].unit == "1",
    )
    ends = {"mean": found.value, "low": found.low, "high": found.high}
    return result.Figure(**ends, sd=stats.deviation(values), n=len(values))


def _median(values: Sequence[float | None]) -> result.Median:
    """Returns the median of values, None being infinite, and its distribution-free interval."""
    if not values:
        return result.Median()
    low, high, confidence = stats.median_interval_s(values, confidence=CONFIDENCE)
    ends = {"low": stats.finite_or_none(low), "high": stats.finite_or_none(high)}
    median = stats.median_time_s(values)
    return result.Median(median=median, **ends, confidence=confidence, n=len(values))


# --- The model


READERS: Mapping[result.Response, Reader] = {
    "speed": lambda run: -math.log(time_s) if (time_s := epoch_s(run)) else None,
    "accuracy": OF_RUN["accuracy"],
    "macro_f1": OF_RUN["macro_f1"],
}


def _values(together: Mapping[str, TrialRecord], read: Reader) -> effects.Values:
    return {
        name: {
            run.seed: value
            for run in record.runs
            if run.status not in BROKEN and (value := read(run)) is not None
        }
        for name, record in together.items()
    }


def _effects(
    axes: Sequence[Axis], arms: Sequence[Arm], values: Mapping[result.Response, effects.Values]
) -> Sequence[result.EffectResult]:
    contrasts = effects.contrasts_of(axes, arms)
    weights = [contrast.weights for contrast in contrasts]
    return [
        result.EffectResult(response=response, kind=one.kind, name=one.name, estimate=found)
        for response in READERS
        for one, found in zip(
            contrasts, _estimates(weights, response, values[response]), strict=True
        )
        if found is not None
    ]


def _estimates(
    weights: Sequence[Mapping[str, float]], response: result.Response, values: effects.Values
) -> list[effects.Estimate | None]:
    """Returns the estimates of one table, corrected by Holm in their number; None: no seed."""
    found = [effects.estimate(each, values, confidence=CONFIDENCE) for each in weights]
    known = iter(effects.with_holm([each for each in found if each.value is not None]))
    corrected = [None if each.value is None else next(known) for each in found]
    return [each and _as_factor(each) if response == "speed" else each for each in corrected]


def _as_factor(found: effects.Estimate) -> effects.Estimate:
    logs = {name: getattr(found, name) for name in ("value", "low", "high")}
    factors = {
        name: None if log is None or log > LARGEST_LOG else math.exp(log)
        for name, log in logs.items()
    }
    return found.model_copy(update=factors)


def _against_base(
    together: Mapping[str, TrialRecord],
    names: Sequence[str],
    values: Mapping[result.Response, effects.Values],
) -> dict[str, dict[str, Any]]:
    """Returns an arm's fields of speed, scores and time to target next to the base's."""
    base = together.get(BASE)
    if base is None:
        return {}
    others = [name for name in names if name != BASE and name in together]
    found = {name: _sooner(together[name], base) for name in others}
    tested = {name: own["time_to_target_p"] for name, own in found.items() if own}
    known = {name: p_value for name, p_value in tested.items() if p_value is not None}
    for name, adjusted in zip(known, holm(list(known.values())), strict=True):
        found[name]["time_to_target_p_holm"] = adjusted
    weights = [{name: 1.0, BASE: -1.0} for name in others]
    for response, field in result.GAINS.items():
        gains = _estimates(weights, response, values[response])
        for name, gain in zip(others, gains, strict=True):
            found[name][field] = gain
    return found


def _sooner(arm: TrialRecord, base: TrialRecord) -> dict[str, Any]:
    pairs = common_seeds(base, arm)
    if not any(run.time_to_target_s is not None for run in chain(*pairs)):
        return {}
    ours, theirs = ([stats.sample_of(run) for run in runs] for runs in zip(*pairs, strict=True))
    found, other = (
        compare(*sides, confidence=CONFIDENCE, miss_s=base.miss_s)
        for sides in ((ours, theirs), (theirs, ours))
    )
    # Either could have looked faster, so the smaller one-sided p-value counts twice.
    p_value = min(1.0, 2 * min(found.p_value, other.p_value))
    assert found.ratio is not None
    return {
        "time_to_target_factor": stats.finite_or_none(found.ratio),
        "time_to_target_low": found.low,
        "time_to_target_high": stats.finite_or_none(found.high),
        "time_to_target_p": p_value if len(pairs) >= LEAST_PAIRS else None,
        "time_to_target_pairs": len(pairs),
        "time_to_target_method": found.method,
    }
