"""Checks, before any trial starts, whether a search's networks take its images and techniques.

A process of its own imports torch and tries them (`tune_speed.training.precheck`) while Ray starts.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.study.mistake import Mistake
from tune_speed.study.space import Params, SearchSpace
from tune_speed.study.validation import written_path
from tune_speed.study.yaml import Source

# Our CIFAR ResNets take any image: they need no check, as long as no speed-up changes them, and no
# file has their weights.
TAKES_ANYTHING = {"resnet20", "resnet", "preact_resnet"}
# Most combinations that are checked; others are checked by their trial.
MOST = 64
# Longest wait for the answer [s]; a trial that does not fit then fails by itself.
ANSWER_S = 120.0
SMALL = {"batch_size": 2, "accumulation_steps": 1, "effective_batch_size": None, "epochs": 1}


class Question(NamedTuple):
    """A check that may still be under way."""

    process: "subprocess.Popen[str]"
    cases: Sequence[Params]


def start(
    space: SearchSpace, *, image_shape: tuple[int, ...], num_classes: int, num_train: int
) -> Question | None:
    """Starts the check; None if all are known to fit. `image_shape` is (H, W, C)."""
    cases = list(_cases(space).values())[:MOST]
    if not cases:
        return None
    process = subprocess.Popen(
        [sys.executable, "-m", "tune_speed.training.precheck"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    question = {
        "recipes": [space.build(params) | SMALL for params in cases],
        "image_shape": image_shape,
        "num_classes": num_classes,
        "num_train": num_train,
    }
    assert process.stdin is not None
    process.stdin.write(json.dumps(question))
    process.stdin.close()
    # `communicate` would flush the closed file, which raises ValueError.
    process.stdin = None
    return Question(process, cases)


def refuse_misfits(question: Question | None, space: SearchSpace, source: Source) -> None:
    """Waits for the answer. Raises: ConfigError with what does not fit, by file and line."""
    if question is None:
        return
    try:
        answer, errors = question.process.communicate(timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        question.process.kill()
        question.process.communicate()
        return
    assert question.process.returncode == 0, f"the check of the networks failed:\n{errors}"
    problems = []
    for problem in (Problem(**fields) for case in json.loads(answer) for fields in case):
        names = tuple(problem.path.removeprefix("recipe.").split("."))
        path = ("recipe", *written_path(space.tree, names))
        problems.append(Mistake(path, problem.must, problem.given, problem.hint).problem(source))
    if problems:
        raise ConfigError(problems=tuple(dict.fromkeys(problems)))


def _cases(space: SearchSpace) -> dict[str, Params]:
    """Returns one point of the space for each different model with its speed-ups."""
    cases: dict[str, Params] = {}
    for params in space.corners():
        tree = space.build(params)
        parts: dict[str, Any] = {name: tree.get(name) for name in ("model", "speedups")}
        model, speedups = parts["model"], parts["speedups"] or {}
        name, fields = (model, {}) if isinstance(model, str) else next(iter(model.items()))
        is_read = (fields or {}).get("weights_file") is not None
        is_off = all(value in ("off", {"off": {}}, {"off": None}) for value in speedups.values())
        if name not in TAKES_ANYTHING or is_read or not is_off:
            cases.setdefault(json.dumps(parts, sort_keys=True), params)
    return cases


def cancel(question: Question | None) -> None:
    if question is not None and question.process.poll() is None:
        question.process.kill()
        question.process.communicate()
