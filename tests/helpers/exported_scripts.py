"""Runs exported scripts, and trains the same recipe with the package."""

import re
import runpy
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from training import to_end

from tune_speed.core.records import Evaluation
from tune_speed.data.cache import prepare
from tune_speed.data.split import make_splits
from tune_speed.study.file import RecipeFile, parse_recipe
from tune_speed.training.build import Part
from tune_speed.training.loop import train

SCORE = re.compile(r"step (\d+) .*?accuracy ([\d.]+) .*?loss ([\d.]+)")


class Score(NamedTuple):
    """One evaluation."""

    step: int
    accuracy: float
    loss: float


def recipe_file(text: str) -> RecipeFile:
    """Returns the recipe of a file's text, with one thread of the CPU."""
    run = "" if "\nrun:" in text else "run: {device: cpu, cpu_threads: 1, seed: 3}\n"
    return parse_recipe(f"{text}\n{run}", file="best.yaml", check_data=False)


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
    """Returns the evaluations that a script printed."""
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
        file.workload, file.recipe, splits, seed=seed, evaluated_on=part, device=torch.device("cpu")
    )
    return to_end(run).evaluations[1:]
