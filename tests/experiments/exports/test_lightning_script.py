import ast
import re
from pathlib import Path

import pytest
from helpers.experiments.exports import (
    RECIPES,
    SGD,
    complaints,
    run_in_process,
    scores_of,
    scores_of_ours,
    small,
)

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.exports.script import LIGHTNING, script
from tune_speed.study.file import RecipeFile

# Lightning's own, on checkpoints, loggers and deprecated parts of torch.
pytestmark = pytest.mark.filterwarnings("ignore")
CARRIED = ("adamw", "augmented", "rates", "bf16", "fastai", "torchvision")


def written(file: RecipeFile) -> str:
    return script(file, form=LIGHTNING, origin="# of a test", path="train.py")


@pytest.mark.parametrize("name", CARRIED)
def test_script_gives_the_figures_of_the_package(name: str, tmp_path: Path) -> None:
    file = small(RECIPES[name])
    theirs = scores_of(run_in_process(written(file), tmp_path, "--seed", "5"))
    ours = scores_of_ours(file, seed=5)
    # Lightning evaluates where an epoch ends, which with `drop_last` is not on our grid.
    by_step = {score.step: score for score in theirs}
    common = [(by_step[own.step], own) for own in ours if own.step in by_step]
    assert theirs[-1].step == ours[-1].step == common[-1][1].step
    for score, own in common:
        assert score.accuracy == pytest.approx(own.accuracy, abs=6e-5)
        assert score.loss == pytest.approx(own.loss, abs=2e-4 + 1e-4 * own.loss)


@pytest.mark.parametrize("name", CARRIED)
def test_linters_find_nothing_in_a_script(name: str, tmp_path: Path) -> None:
    assert complaints(written(small(RECIPES[name])), tmp_path) == ""


def test_script_is_set_up_around_a_trainer() -> None:
    text = written(small(RECIPES["augmented"]))
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call)]
    [trainer] = [c for c in calls if ast.unparse(c.func) == "pl.Trainer"]
    given = {k.arg: ast.unparse(k.value) for k in trainer.keywords}
    assert given["gradient_clip_val"] == "0.5" and given["gradient_clip_algorithm"] == "'norm'"
    assert given["precision"] == "'32-true'" and given["max_steps"] == "num_steps"


def test_what_a_trainer_cannot_carry_is_named_at_once() -> None:
    recipe = "optimizer: {muon: {lr: 0.1}}\n  speedups: {averaging: ema}\n  clip_norm: 1.0\n"
    file = small(f"{recipe}  clip_value: 0.1", workload="  eval_every_samples: 40\n")
    with pytest.raises(ConfigError) as error:
        written(file)
    assert [problem.path for problem in error.value.problems] == [
        "recipe.optimizer",
        "recipe.speedups.averaging",
        "workload.eval_every_samples",
        "recipe.clip_value",
    ]
    assert str(error.value).startswith("A Lightning script cannot carry this recipe;")


@pytest.mark.parametrize(
    ("workload", "path"),
    [
        ("  mode: anytime\n", "workload.mode"),
        ("  target: {metric: macro_f1, value: 1.0}\n", "metric"),
    ],
)
def test_task_that_a_trainer_cannot_carry_is_named(workload: str, path: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(path)):
        written(small(SGD, workload=workload))
