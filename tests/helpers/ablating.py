"""Ablations whose runs are made up: quick, and with what is to be found known."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from making import make_evaluation, make_record, make_run

from tune_speed.core.records import Clocks, RunResult, Status, TrialRecord
from tune_speed.experiments.ablation.ablate import Ablation, run_ablation
from tune_speed.experiments.ablation.plan import AblationPlan, plan_ablation
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
    """Returns a run of one epoch."""
    last = make_evaluation(train_s=epoch_s, accuracy=accuracy)
    run = make_run(status, time_s=epoch_s, accuracy=accuracy, seed=seed)
    clocks = Clocks(train_s=epoch_s, wall_s=epoch_s)
    return run.model_copy(update={"evaluations": (last,), "clocks": clocks})


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
