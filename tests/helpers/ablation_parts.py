"""Made-up ablations, without training."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from making import WORKLOAD, make_evaluation, make_record, make_run

from tune_speed.core.records import RunResult, Status, TrialRecord
from tune_speed.experiments.ablation.design import Design, arms_of, read_axes, settings_of
from tune_speed.experiments.ablation.result import AblationResult, AblationTask, TuningPoint
from tune_speed.experiments.ablation.summarise import summarise_arms

FULL_WORKLOAD: dict[str, Any] = {**WORKLOAD, "max_train_s": 100.0}


def make_arm_run(
    *, seed: int, time_s: float, accuracy: float = 0.95, status: Status = Status.REACHED
) -> RunResult:
    """Returns a run of one epoch, so that its training clock is its time per epoch."""
    run = make_run(status, time_s=time_s, accuracy=accuracy, seed=seed)
    return run.model_copy(
        update={"evaluations": (make_evaluation(train_s=time_s, accuracy=accuracy),)}
    )


def records_of(runs: Sequence[RunResult], *, precision: str = "fp32") -> list[TrialRecord]:
    recipe = {"model": {"resnet20": {}}, "batch_size": 32, "precision": precision}
    return [
        make_record(runs=(run,), status=run.status).model_copy(update={"recipe": recipe})
        for run in runs
    ]


def ablated(
    runs: Mapping[str, Sequence[RunResult]],
    *,
    axes: Mapping[str, Any],
    design: Design = "one-at-a-time",
    workload: Mapping[str, Any] = FULL_WORKLOAD,
    seeds: int = 3,
    retune: str | None = None,
    not_applicable: Mapping[str, str] | None = None,
    tuning: Mapping[str, Sequence[TuningPoint]] | None = None,
    lr_factors: Mapping[str, float] | None = None,
) -> AblationResult:
    levels = read_axes(axes)
    task = AblationTask(
        study="ablation",
        part="",
        design=design,
        seeds=seeds,
        retune=retune,
        workload_name="digits",
    )
    arms = arms_of(levels, design)
    return summarise_arms(
        task,
        {name: records_of(own) for name, own in runs.items()},
        axes=levels,
        arms=arms,
        settings={arm.name: dict(settings_of(arm, levels)) for arm in arms},
        workload=workload,
        not_applicable=not_applicable or {},
        tuning=tuning or {},
        lr_factors=lr_factors or {},
    )


def planted(
    axes: Mapping[str, Any],
    *,
    design: Design,
    ln_speeds: Mapping[str, float],
    synergy: float = 0.0,
    seeds: int = 5,
) -> dict[str, list[RunResult]]:
    """Returns runs of each arm in which each level adds its ln speed, and all together synergy."""
    levels = read_axes(axes)
    noise = np.random.default_rng(0)
    found: dict[str, list[RunResult]] = {}
    for arm in arms_of(levels, design):
        labels = [axis.levels[j - 1].label for axis, j in zip(levels, arm.levels, strict=True) if j]
        gain = sum(ln_speeds[label] for label in labels) + (len(labels) > 1) * synergy
        found[arm.name] = [
            make_arm_run(
                seed=seed,
                time_s=10 * math.exp(-gain + 0.02 * noise.normal()),
                accuracy=0.95 - 0.004 * len(labels) + 0.002 * noise.normal(),
            )
            for seed in range(seeds)
        ]
    return found
