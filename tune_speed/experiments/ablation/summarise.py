"""Figures of an ablation from its records.

The response of speed is -ln of the time per epoch, so that a contrast's exponential is a speed-up;
seeds are blocks, see `effects`. A run that failed, diverged or ran out of memory is a miss, and
part of no mean.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tune_speed.components.metrics.of_run import epoch_s
from tune_speed.components.metrics.of_run import epochs_of_run as epochs_to_convergence
from tune_speed.components.metrics.repeats import mean_interval
from tune_speed.core.comparability import target_of
from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.core.significance import LARGEST_LOG, holm
from tune_speed.core.stats import (
    finite_or_none,
    median_interval_s,
    median_time_s,
)
from tune_speed.experiments.ablation.axes import Axis
from tune_speed.experiments.ablation.design import BASE, Arm, Design, settings_of
from tune_speed.experiments.ablation.effects import (
    Contrast,
    Estimate,
    contrasts_of,
    estimate,
    with_holm,
)
from tune_speed.experiments.ablation.result import (
    AblationResult,
    ArmResult,
    EffectResult,
    Figure,
    Median,
    Response,
    TuningPoint,
)
from tune_speed.experiments.paired_test import common_seeds, judge
from tune_speed.experiments.run_summary import CONFIDENCE, NO_FINAL, WHOLE, describe_runs

Reader = Callable[[RunResult], float | None]
Values = Mapping[str, Mapping[int, float]]
# Runs whose figures are not those of a training.
BROKEN = (*NO_FINAL, Status.DIVERGED)
# Precisions under autocast; `half`, which has no fp32 weights, is another technique.
MIXED = ("fp16", "bf16")


NO_DUEL: Mapping[str, Any] = {
    "time_to_target_factor": None,
    "time_to_target_low": None,
    "time_to_target_high": None,
    "time_to_target_p": None,
    "time_to_target_pairs": 0,
    "time_to_target_method": "",
}
"""Fields of an arm's time to target against the base's, unknown; factors: base's / the arm's."""


def summarise_arms(
    records: Mapping[str, Sequence[TrialRecord]],
    *,
    axes: Sequence[Axis],
    arms: Sequence[Arm],
    design: Design,
    study: str,
    part: str,
    seeds: int,
    retune: str | None,
    workload_name: str,
    workload: Mapping[str, Any],
    not_applicable: Mapping[str, str],
    tuning: Mapping[str, Sequence[TuningPoint]],
    lr_factors: Mapping[str, float],
) -> AblationResult:
    """Returns the figures of each arm and the contrasts of all of them.

    Args:
        records: Finished runs of each arm, one a record; arms may be missing.
        axes: What the arms are made of.
        arms: All of the design, the base first.
        design: How they were chosen.
        study: Study that holds the runs.
        part: Part of a replication; empty: there are no parts.
        seeds: Runs of each arm, as planned.
        retune: What was re-tuned for each arm; None: nothing.
        workload_name: Name of the workload.
        workload: The whole workload, as YAML has it.
        not_applicable: Arms that are not run here, and why.
        tuning: Runs of the re-tuning, arm by arm.
        lr_factors: What it chose, arm by arm.
    """
    target = target_of(workload)
    together = {
        name: own[0].model_copy(update={"runs": tuple(run for each in own for run in each.runs)})
        for name, own in records.items()
        if own
    }
    here = [arm for arm in arms if arm.name not in not_applicable]
    # Levels that cannot be run here come without the base, which most contrasts are against.
    effects = _effects(together, contrasts_of(axes, here) if arms[0] in here else ())
    duels = {
        arm.name: _duel(together.get(arm.name), together.get(BASE))
        for arm in arms
        if arm.name != BASE
    }
    p_values = {name: duel["time_to_target_p"] for name, duel in duels.items()}
    tested = {name: p_value for name, p_value in p_values.items() if p_value is not None}
    p_holm = dict(zip(tested, holm(list(tested.values())), strict=True))
    found = tuple(
        ArmResult(
            name=arm.name,
            settings=dict(settings_of(arm, axes)),
            not_applicable=not_applicable.get(arm.name),
            lr_factor=lr_factors.get(arm.name),
            is_lr_at_edge=_is_at_edge(lr_factors.get(arm.name), tuning.get(arm.name, ())),
            tuning=tuple(tuning.get(arm.name, ())),
            **_figures(together.get(arm.name)),
            **_gains(arm.name, effects),
            **duels.get(arm.name, NO_DUEL),
            time_to_target_p_holm=p_holm.get(arm.name),
            s_mixed=_s_mixed(arm, arms=arms, axes=axes, together=together),
        )
        for arm in arms
    )
    return AblationResult(
        study=study,
        part=part,
        design=design,
        seeds=seeds,
        retune=retune,
        workload_name=workload_name,
        metric=target.metric,
        target=target.value,
        target_mode=target.mode,
        mode=workload["mode"],
        **_surroundings(together),
        confidence=CONFIDENCE,
        arms=found,
        effects=effects,
        planned_runs=seeds * sum(arm.name not in not_applicable for arm in arms),
        done_runs=sum(arm.n for arm in found),
    )


def _surroundings(together: Mapping[str, TrialRecord]) -> dict[str, Any]:
    """Returns where the runs ran; of the base's machine, as all arms share it."""
    record = together.get(BASE) or next(iter(together.values()), None)
    runs = [run for own in together.values() for run in own.runs]
    return {
        "workload_hash": record.workload_hash if record else "",
        "evaluated_on": record.evaluated_on if record else "",
        "device": record.device if record else "",
        "cpu_threads": record.cpu_threads if record else 0,
        "environment": record.environment if record else {},
        "timing": dict(Counter(run.timing for run in runs)),
        "cotenants": tuple(sorted({name for run in runs for name in run.cotenants})),
    }


def _is_at_edge(factor: float | None, points: Sequence[TuningPoint]) -> bool | None:
    tried = {point.factor for point in points}
    return None if factor is None or len(tried) < 2 else factor in (min(tried), max(tried))


def _figures(record: TrialRecord | None) -> dict[str, Any]:
    """Returns the figures of one arm's own runs."""
    runs = record.runs if record else ()
    whole = [run for run in runs if run.status not in BROKEN]
    memory = (run.peak_memory_gib for run in whole)
    return {
        **_target_figures(record),
        "statuses": dict(Counter(run.status for run in runs)),
        "epoch_s": _figure(whole, epoch_s),
        "images_per_s": _figure(whole, lambda run: run.images_per_s),
        "accuracy": _figure(whole, _accuracy),
        "macro_f1": _figure(whole, _macro_f1),
        "fed_ratio": _figure(whole, lambda run: run.fed_ratio),
        "peak_memory_gib": _median([gib for gib in memory if gib is not None]),
        "epochs_to_convergence": _median([epochs_to_convergence(run) for run in whole]),
        "stop_reasons": tuple(
            dict.fromkeys(run.stop_reason for run in runs if run.status not in WHOLE)
        ),
    }


def _target_figures(record: TrialRecord | None) -> dict[str, Any]:
    """Returns hits and times to target: every run that did not meet it is a miss."""
    if record is None:
        success = {"n": 0, "hits": 0, "success_low": None, "success_high": None}
        expected = dict.fromkeys(("expected_s", "expected_low_s", "expected_high_s"))
        return {**success, **expected, "time_to_target_s": _median([]), "notes": ()}
    found = describe_runs(record)
    middle, expected_interval = found.median_interval, found.expected_interval
    return {
        "n": found.n,
        "hits": found.k,
        "success_low": found.success_rate.low,
        "success_high": found.success_rate.high,
        "expected_s": found.expected_s,
        "expected_low_s": expected_interval.low_s,
        "expected_high_s": expected_interval.high_s,
        "time_to_target_s": Median(
            median=found.median_s,
            low=middle.low_s,
            high=middle.high_s,
            confidence=middle.confidence,
            n=found.n,
        ),
        "notes": found.notes,
    }


def _accuracy(run: RunResult) -> float | None:
    return run.final.value("accuracy") if run.final else None


def _macro_f1(run: RunResult) -> float | None:
    return run.final.value("macro_f1") if run.final else None


def _ln_speed(run: RunResult) -> float | None:
    """Returns -ln of the time per epoch."""
    time_s = epoch_s(run)
    return -math.log(time_s) if time_s else None


READERS: Mapping[Response, Reader] = {
    "speed": _ln_speed,
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
}


def _figure(runs: Sequence[RunResult], read: Reader) -> Figure:
    values = [value for run in runs if (value := read(run)) is not None]
    if not values:
        return Figure(mean=None, low=None, high=None, sd=None, n=0)
    found = mean_interval(values, confidence=CONFIDENCE)
    return Figure(mean=found.mean, low=found.low, high=found.high, sd=found.sd, n=found.n)


def _median(values: Sequence[float | None]) -> Median:
    """Returns the median of values of which None is infinite, and its distribution-free interval.

    What holds for times that may be missed holds for any figure.
    """
    if not values:
        return Median(median=None, low=None, high=None, confidence=0.0, n=0)
    low, high, confidence = median_interval_s(values, confidence=CONFIDENCE)
    return Median(
        median=median_time_s(values),
        low=finite_or_none(low),
        high=finite_or_none(high),
        confidence=confidence,
        n=len(values),
    )


def _effects(
    together: Mapping[str, TrialRecord], contrasts: Sequence[Contrast]
) -> tuple[EffectResult, ...]:
    """Returns all contrasts with a block that has every arm, p-values corrected by response."""
    found: list[EffectResult] = []
    for response, read in READERS.items():
        values = _values(together, read)
        pairs = [(contrast, estimate(contrast, values)) for contrast in contrasts]
        known = [(contrast, one) for contrast, one in pairs if one.value is not None]
        corrected = with_holm([one for _, one in known])
        found += [
            EffectResult(
                response=response,
                kind=contrast.kind,
                name=contrast.name,
                estimate=_as_factor(one) if response == "speed" else one,
            )
            for (contrast, _), one in zip(known, corrected, strict=True)
        ]
    return tuple(found)


def _values(together: Mapping[str, TrialRecord], read: Reader) -> Values:
    """Returns a response by arm and seed, of the runs that have it."""
    return {
        name: {
            run.seed: value
            for run in record.runs
            if run.status not in BROKEN and (value := read(run)) is not None
        }
        for name, record in together.items()
    }


def _as_factor(found: Estimate) -> Estimate:
    """Returns an estimate of log speed as a factor of speed; None where that is infinite."""
    logs = {name: getattr(found, name) for name in ("value", "low", "high")}
    factors = {
        name: None if log is None or log > LARGEST_LOG else math.exp(log)
        for name, log in logs.items()
    }
    return found.model_copy(update=factors)


def _gains(name: str, effects: Sequence[EffectResult]) -> dict[str, Estimate | None]:
    """Returns an arm's contrasts with the base."""
    own = {
        effect.response: effect.estimate
        for effect in effects
        if effect.name == name and effect.kind in ("alone", "together")
    }
    return {
        "speed_up": own.get("speed"),
        "accuracy_gain": own.get("accuracy"),
        "macro_f1_gain": own.get("macro_f1"),
    }


def _s_mixed(
    arm: Arm, *, arms: Sequence[Arm], axes: Sequence[Axis], together: Mapping[str, TrialRecord]
) -> Estimate | None:
    """Returns how much faster mixed precision makes the arm.

    Source: S0, equation 1.
    """
    twin = _fp32_twin(arm, arms, axes)
    base = together.get(BASE)
    if twin is None or base is None or base.recipe.get("precision", "fp32") != "fp32":
        return None
    contrast = Contrast(kind="alone", name=arm.name, weights={arm.name: 1.0, twin: -1.0})
    found = estimate(contrast, _values(together, _ln_speed))
    return None if found.value is None else _as_factor(found)


def _fp32_twin(arm: Arm, arms: Sequence[Arm], axes: Sequence[Axis]) -> str | None:
    """Returns the arm that is this one but for its level of mixed precision, or None."""
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


def _duel(arm: TrialRecord | None, base: TrialRecord | None) -> Mapping[str, Any]:
    pairs = common_seeds(arm, base) if arm and base else []
    if arm is None or base is None or not pairs:
        return NO_DUEL
    found = judge(arm, base)
    if found.faster is None:
        is_draw = any(ours.time_to_target_s is not None for ours, _ in pairs)
        draw = {"time_to_target_factor": 1.0, "time_to_target_pairs": found.num_pairs}
        return {**NO_DUEL, **draw} if is_draw else NO_DUEL
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
    """Returns 1 / factor, where None is infinite on both sides."""
    if factor is None:
        return 0.0
    return 1 / factor if factor else None
