"""Runs exported scripts, and trains the same recipe with the package."""

import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from helpers.training.tiny import to_end

from tune_speed.core.records import Evaluation
from tune_speed.data.cache import prepare
from tune_speed.data.split import make_splits
from tune_speed.study.file import RecipeFile, parse_recipe
from tune_speed.training.build import Job, Part
from tune_speed.training.loop import train

SCORE = re.compile(r"step (\d+) .*?accuracy ([\d.]+) .*?loss ([\d.]+)")


SMALL = """
workload:
  dataset: {name: digits}
  target: {metric: accuracy, value: 1.0}
  split: {validation_frac: 0.2, train_samples: 150, validation_samples: 90, seed: 7}
recipe:
  model: {resnet: {depth: 8}}
  epochs: 2.4
  batch_size: 16
"""
SGD = "optimizer: {sgd: {lr: 0.1}}"
RECIPES = {
    "adamw": "optimizer: {adamw: {lr: 0.01, weight_decay: 0.1}}\n  lr_schedule: one_cycle\n"
    "  accumulation_steps: 3",
    "augmented": """optimizer: {sgd: {lr: 0.1, weight_decay: 0.01}}
  lr_schedule: {cosine: {warmup_frac: 0.2, final_frac: 0.1}}
  augmentation: {pad: 1, flip: random, affine: 0.1, cutout: 2}
  label_smoothing: 0.1
  clip_norm: 0.5""",
    "rates": """optimizer:
    sgd: {lr: 4.0, lr_per_examples: 1024, bias_lr: 8.0, nesterov: false, weight_decay: 0.001,
          decay_norms_and_biases: true}
  lr_schedule: {trapezoid: {warmup_frac: 0.2, flat_frac: 0.3}}
  augmentation: {flip: alternating}
  accumulation_steps: 2
  drop_last: true
  clip_value: 0.05""",
    "averaged": """optimizer: {adam: {lr: 0.01, weight_decay: 0.01, beta1: 0.8, eps: 1e-6}}
  lr_schedule: {multi_step: {warmup_frac: 0.1, milestones: [0.4, 0.7]}}
  speedups: {averaging: {ema: {half_life: 0.1, every: 3}}, views: {tta: {views: 6}}}""",
    "bf16": """optimizer: {adamw: {lr: 0.01}}
  lr_schedule: {exponential: {warmup_frac: 0.1}}
  precision: bf16
  speedups: {views: {tta: {views: 2}}}
  channels_last: false
  optimizer_kernels: foreach""",
    "fastai": f"{SGD}\n  lr_schedule: one_cycle_fastai\n  deterministic: true",
    "linear": f"{SGD}\n  lr_schedule: {{one_cycle: {{anneal: linear, cycle_momentum: false}}}}\n"
    "  matmul_precision: high",
    "constant": f"{SGD}\n  lr_schedule: {{constant: {{warmup_frac: 0.5}}}}",
    "timm": f"{SGD}\n  model:"
    " {mobilenet: {variant: v3_small_050, drop_rate: 0.1, drop_path_rate: 0.1}}",
    "vit": "optimizer: {adamw: {lr: 0.001}}\n"
    "  model: {timm: {name: vit_tiny_patch16_224, patch_size: 4}}",
    "torchvision": f"{SGD}\n  model: {{squeezenet: {{drop_rate: 0.2}}}}",
    "windows": f"""{SGD}
  image_size: 10
  eval_size: 12
  crop_pct: 0.875
  augmentation: {{crop: {{random_resized: {{scale: 0.3, ratio: 1.5}}}}}}""",
    "timm's optimizer": "optimizer: {timm: {name: lambc, lr: 0.01, weight_decay: 0.1}}\n"
    "  lr_schedule: {one_cycle: {}}\n  activation_checkpointing: true",
    "resized": f"{SGD}\n  model: {{squeezenet: {{resize_to: 32, stem: native}}}}",
}
"""By name; together they have every schedule, optimizer, change to images and model of a kind."""


class Score(NamedTuple):
    step: int
    accuracy: float
    loss: float


def recipe_file(text: str) -> RecipeFile:
    run = "" if "\nrun:" in text else "run: {device: cpu, cpu_threads: 1, seed: 3}\n"
    return parse_recipe(f"{text}\n{run}", file="best.yaml", check_data=False)


def small(recipe: str, *, workload: str = "") -> RecipeFile:
    """Returns a short training on digits; `workload` are lines of its own."""
    text = SMALL.replace("recipe:\n", f"{workload}recipe:\n")
    if "target:" in workload:
        text = text.replace("  target: {metric: accuracy, value: 1.0}\n", "", 1)
    if "model:" in recipe:
        text = re.sub(r"  model: .*\n", "", text)
    return recipe_file(f"{text}  {recipe}\n")


def run_in_process(text: str, folder: Path, *options: str) -> str:
    """Runs a script as its own program would, in this process; returns what it printed."""
    path = folder / "train.py"
    path.write_text(text)
    out = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setattr(sys, "argv", [str(path), *options])
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()


def scores_of(printed: str) -> list[Score]:
    found = SCORE.findall(printed)
    return [Score(int(step), float(accuracy), float(loss)) for step, accuracy, loss in found]


def scores_of_ours(file: RecipeFile, *, seed: int, part: Part = "validation") -> list[Score]:
    """Returns the scores of the package's own training, as scripts round them."""
    evaluations = evaluations_of_ours(file, seed=seed, part=part)
    return [Score(e.step, e.accuracy, round(e.loss or 0.0, 4)) for e in evaluations]


def evaluations_of_ours(
    file: RecipeFile, *, seed: int, part: Part = "validation"
) -> tuple[Evaluation, ...]:
    """Returns the evaluations of the package's own training, without the untrained model's."""
    splits = make_splits(prepare(file.workload.dataset), file.workload.split)
    run = train(
        Job(
            file.workload,
            file.recipe,
            splits,
            seed=seed,
            evaluated_on=part,
            device=torch.device("cpu"),
        )
    )
    return to_end(run).evaluations[1:]


def complaints(text: str, folder: Path) -> str:
    """Returns what ruff says of a script: its lints, and what its formatter would change."""
    path = folder / "train.py"
    path.write_text(text)
    said = ""
    for command in (["check", "--quiet"], ["format", "--quiet", "--diff"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "100"]
        said += subprocess.run([*ruff, str(path)], capture_output=True, text=True).stdout
    return said
