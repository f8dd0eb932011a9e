"""Ablations whose runs are made up: quick, and with what is to be found known."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from helpers.making import WORKLOAD, make_record, make_run

from tune_speed.core.records import Clocks, RunResult, Status, TrialRecord
from tune_speed.experiments.ablation.ablate import Ablation, run_ablation
from tune_speed.experiments.ablation.design import Design, arms_of, read_axes, settings_of
from tune_speed.experiments.ablation.plan import AblationPlan, plan_ablation
from tune_speed.experiments.ablation.result import AblationResult, AblationTask, TuningPoint
from tune_speed.experiments.ablation.summarise import summarise_arms
from tune_speed.study.file import RecipeFile

RECIPE = """\
study: tiny
workload:
  dataset: {name: digits}
  target: {metric: accuracy, value: 0.3}
  max_train_s: 30
  split: {validation_frac: 0.2, train_samples: 300, validation_samples: 100}
recipe:
  model: resnet20
  optimizer: {sgd: {lr: 0.1}}
  lr_schedule: one_cycle
  epochs: 1
  batch_size: 50
  loader: {dataloader: {workers: 0, pin_memory: false}}
run: {device: cpu, cpu_threads: 1, seed: 4}
"""
AXES = {"accumulation_steps": 2, "label_smoothing": 0.1}
Outcome = Callable[[RecipeFile, int], RunResult]


def write_recipe(folder: Path, text: str = RECIPE) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(text)
    return path


def make_plan(
    folder: Path, *overrides: str, axes: Mapping[str, Any] | None = AXES, text: str = RECIPE
) -> AblationPlan:
    given = [] if axes is None else [f"ablate.axes={json.dumps(axes)}", "ablate.seeds=2"]
    path = write_recipe(folder, text)
    return plan_ablation(str(path), overrides=[*given, *overrides], check_data=False)


def ablate(plan: AblationPlan, folder: Path, *, part: str = "", again: bool = False) -> Ablation:
    return run_ablation(
        plan,
        folder=folder,
        part=part,
        again=again,
        download=False,
        on_progress=lambda done, total: None,
        on_line=lambda line: None,
    )


def make_epoch(
    seed: int,
    *,
    epoch_s: float = 1.0,
    accuracy: float = 0.95,
    status: Status = Status.REACHED,
) -> RunResult:
    """Returns a run of one epoch, which was alone."""
    run = make_run(status, time_s=epoch_s, accuracy=accuracy, seed=seed)
    return run.model_copy(update={"clocks": Clocks(train_s=epoch_s, wall_s=epoch_s)})


def make_broken(seed: int, status: Status) -> RunResult:
    return make_run(status, seed=seed)


@dataclass
class Trainer:
    """Stands in for `train_once`; `stop_at` runs it answers with Ctrl-C."""

    outcome: Outcome = lambda file, seed: make_epoch(seed)
    stop_at: int | None = None
    calls: list[tuple[RecipeFile, int]] = field(default_factory=list)

    def __call__(self, file: RecipeFile, *, seed: int, **_: Any) -> TrialRecord:
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append((file, seed))
        run = self.outcome(file, seed)
        record = make_record(status=run.status, runs=(run,))
        recipe = file.recipe.model_dump(mode="json")
        workload = file.workload.model_dump(mode="json")
        return record.model_copy(update={"recipe": recipe, "workload": workload})

    def settings(self) -> list[tuple[int, float, int]]:
        """Returns what the arms of `AXES` differ in, and the seed, of each run."""
        return [
            (int(file.recipe.accumulation_steps), file.recipe.label_smoothing, seed)
            for file, seed in self.calls
        ]


# --- Results

FULL_WORKLOAD: dict[str, Any] = {**WORKLOAD, "max_train_s": 100.0}


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
            make_run(
                seed=seed,
                time_s=10 * math.exp(-gain + 0.02 * noise.normal()),
                accuracy=0.95 - 0.004 * len(labels) + 0.002 * noise.normal(),
            )
            for seed in range(seeds)
        ]
    return found
