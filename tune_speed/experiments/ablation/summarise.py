"""Figures of an ablation from its records.

The response of speed is -ln of the time per epoch, so that a contrast's exponential is a speed-up;
seeds are blocks, see `effects`. A run that failed, diverged or ran out of memory is a miss, and
part of no mean.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tune_speed.components.metrics import METRICS
from tune_speed.components.metrics.base import OF_RUN, epoch_s
from tune_speed.core import stats
from tune_speed.core.comparability import target_of
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.significance import LARGEST_LOG, holm
from tune_speed.core.words import joined
from tune_speed.experiments.ablation import result
from tune_speed.experiments.ablation.design import BASE, Arm, Axis
from tune_speed.experiments.ablation.effects import (
    Contrast,
    Estimate,
    contrasts_of,
    estimate,
    with_holm,
)
from tune_speed.experiments.paired_test import common_seeds, judge
from tune_speed.experiments.run_summary import CONFIDENCE, NO_FINAL, WHOLE

Reader = Callable[[RunResult], float | None]
# Runs whose figures are not those of a training.
BROKEN = (*NO_FINAL, Status.DIVERGED)
# Precisions under autocast; `half`, which has no fp32 weights, is another technique.
MIXED = ("fp16", "bf16")


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
    """Returns the figures of each arm and the contrasts of all of them.

    `records` has the finished runs of each arm, one a record; arms may be missing. `axes` are what
    the arms that can be run here are made of; `arms` are all of the design, the base first, and
    those of `not_applicable`.
    """
    target = target_of(workload)
    together = {
        name: own[0].model_copy(update={"runs": tuple(run for each in own for run in each.runs)})
        for name, own in records.items()
        if own
    }
    here = [arm for arm in arms if arm.name not in not_applicable]
    # Without the base, which most contrasts are against, the arms have their own figures only.
    effects = _effects(together, contrasts_of(axes, here) if arms[0] in here else ())
    against_base = [effect for effect in effects if effect.kind in ("alone", "together")]
    base = together.get(BASE)
    duels = {name: _duel(own, base) for name, own in together.items() if base and name != BASE}
    p_values = {name: duel.get("time_to_target_p") for name, duel in duels.items()}
    tested = {name: p_value for name, p_value in p_values.items() if p_value is not None}
    p_holm = dict(zip(tested, holm(list(tested.values())), strict=True))
    found = tuple(
        result.ArmResult(
            name=arm.name,
            settings=dict(settings[arm.name]),
            not_applicable=not_applicable.get(arm.name),
            lr_factor=lr_factors.get(arm.name),
            is_lr_at_edge=_is_at_edge(lr_factors.get(arm.name), tuning.get(arm.name, ())),
            tuning=tuple(tuning.get(arm.name, ())),
            **(_figures(together[arm.name]) if arm.name in together else {}),
            **{result.GAINS[e.response]: e.estimate for e in against_base if e.name == arm.name},
            **duels.get(arm.name, {}),
            time_to_target_p_holm=p_holm.get(arm.name),
            s_mixed=_s_mixed(arm, here, axes, together) if arm in here else None,
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
        effects=effects,
        planned_runs=task.seeds * len(here),
        done_runs=sum(arm.n for arm in found),
    )


def _surroundings(together: Mapping[str, TrialRecord]) -> dict[str, Any]:
    record = together.get(BASE) or next(iter(together.values()), None)
    runs = [run for own in together.values() for run in own.runs]
    names = ("workload_hash", "evaluated_on", "cpu_threads", "environment")
    return {
        **({name: getattr(record, name) for name in names} if record else {}),
        **({"device": str(record.device)} if record else {}),
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
    return {
        "n": found.n,
        "statuses": dict(Counter(run.status for run in record.runs)),
        "hits": found.hits,
        "success_low": success.low,
        "success_high": success.high,
        **{name: _figure(whole, name) for name in result.MEANS},
        "peak_memory_gib": _median([gib for gib in memory if gib is not None]),
        "time_to_target_s": _median(found.times_s),
        "expected_s": found.expected_s if found.hits else None,
        "expected_low_s": expected.low_s,
        "expected_high_s": expected.high_s,
        "epochs_to_convergence": _median([OF_RUN["epochs_to_convergence"](run) for run in whole]),
        "notes": tuple(dict.fromkeys(joined(run.note) for run in record.runs if run.note)),
        "stop_reasons": tuple(
            dict.fromkeys(str(run.stop_reason) for run in record.runs if run.status not in WHOLE)
        ),
    }


def _ln_speed(run: RunResult) -> float | None:
    time_s = epoch_s(run)
    return -math.log(time_s) if time_s else None


READERS: Mapping[result.Response, Reader] = {
    "speed": _ln_speed,
    "accuracy": OF_RUN["accuracy"],
    "macro_f1": OF_RUN["macro_f1"],
}


def _figure(runs: Sequence[RunResult], name: str) -> result.Figure:
    read, is_positive = OF_RUN[name], name in result.RATES
    is_share = METRICS[name].unit == "1"
    values = [value for run in runs if (value := read(run)) is not None]
    if not values:
        return result.Figure()
    found = stats.mean_interval(
        values, confidence=CONFIDENCE, is_positive=is_positive, is_share=is_share
    )
    ends = {"mean": found.value, "low": found.low, "high": found.high}
    return result.Figure(**ends, sd=stats.deviation(values), n=len(values))


def _median(values: Sequence[float | None]) -> result.Median:
    """Returns the median of values, None being infinite, and its distribution-free interval."""
    if not values:
        return result.Median()
    ends = stats.TimeInterval.of(*stats.median_interval_s(values, confidence=CONFIDENCE))
    low, high, confidence = ends.low_s, ends.high_s, ends.confidence
    median = stats.median_time_s(values)
    return result.Median(median=median, low=low, high=high, confidence=confidence, n=len(values))


def _effects(
    together: Mapping[str, TrialRecord], contrasts: Sequence[Contrast]
) -> tuple[result.EffectResult, ...]:
    found: list[result.EffectResult] = []
    for response, read in READERS.items():
        values = _values(together, read)
        pairs = [(contrast, estimate(contrast, values)) for contrast in contrasts]
        known = [(contrast, one) for contrast, one in pairs if one.value is not None]
        corrected = with_holm([one for _, one in known])
        found += [
            result.EffectResult(
                response=response,
                kind=contrast.kind,
                name=contrast.name,
                estimate=_as_factor(one) if response == "speed" else one,
            )
            for (contrast, _), one in zip(known, corrected, strict=True)
        ]
    return tuple(found)


def _values(together: Mapping[str, TrialRecord], read: Reader) -> dict[str, dict[int, float]]:
    return {
        name: {
            run.seed: value
            for run in record.runs
            if run.status not in BROKEN and (value := read(run)) is not None
        }
        for name, record in together.items()
    }


def _as_factor(found: Estimate) -> Estimate:
    logs = {name: getattr(found, name) for name in ("value", "low", "high")}
    factors = {
        name: None if log is None or log > LARGEST_LOG else math.exp(log)
        for name, log in logs.items()
    }
    return found.model_copy(update=factors)


def _s_mixed(
    arm: Arm, arms: Sequence[Arm], axes: Sequence[Axis], together: Mapping[str, TrialRecord]
) -> Estimate | None:
    """Source: S0, equation 1."""
    twin = _fp32_twin(arm, arms, axes)
    base = together.get(BASE)
    if twin is None or base is None or base.recipe.get("precision", "fp32") != "fp32":
        return None
    contrast = Contrast(kind="alone", name=arm.name, weights={arm.name: 1.0, twin: -1.0})
    found = estimate(contrast, _values(together, _ln_speed))
    return None if found.value is None else _as_factor(found)


def _fp32_twin(arm: Arm, arms: Sequence[Arm], axes: Sequence[Axis]) -> str | None:
    pairs = zip(axes, arm.levels, strict=True)
    chosen = [axis.levels[level - 1].settings if level else () for axis, level in pairs]
    mixed = [
        i
        for i, settings in enumerate(chosen)
        if len(settings) == 1 and settings[0][0] == "precision" and settings[0][1] in MIXED
    ]
    if len(mixed) != 1:
        return None
    levels = tuple(0 if i == mixed[0] else level for i, level in enumerate(arm.levels))
    return next((other.name for other in arms if other.levels == levels), None)


def _duel(arm: TrialRecord, base: TrialRecord) -> dict[str, Any]:
    pairs = common_seeds(arm, base)
    if not any(run.time_to_target_s is not None for pair in pairs for run in pair):
        return {}
    found = judge(arm, base)
    if found.faster is None:
        return {"time_to_target_factor": 1.0, "time_to_target_pairs": found.num_pairs}
    factor, low, high = found.factor, found.factor_low, found.factor_high
    if found.faster == "b":
        factor, low, high = _inverse(factor), _inverse(high), _inverse(low)
    return {
        "time_to_target_factor": factor,
        "time_to_target_low": low,
        "time_to_target_high": high,
        # Either could have looked faster, so a one-sided p-value counts twice.
        "time_to_target_p": None if found.p_value is None else min(1.0, 2 * found.p_value),
        "time_to_target_pairs": found.num_pairs,
        "time_to_target_method": found.method,
    }


def _inverse(factor: float | None) -> float | None:
    if factor is None:
        return 0.0
    return 1 / factor if factor else None
