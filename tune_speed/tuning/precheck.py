"""Checks, before any trial starts, whether a search's networks take its images and techniques.

A process of its own imports torch and tries them (`tune_speed.training.precheck`) while Ray starts.
"""

import json
import subprocess
import sys
from typing import Any

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.study.file import StudyFile
from tune_speed.study.mistake import Mistake
from tune_speed.study.space import Params, SearchSpace
from tune_speed.study.validation import written_path
from tune_speed.tuning.admission import PreparedWorkload

# They take any image, as long as no speed-up changes them, and no file has their weights.
TAKES_ANYTHING = {"resnet20", "resnet", "preact_resnet"}
# Most combinations that are checked; others are checked by their trial.
MOST = 64
# Longest wait for the answer [s]; a trial that does not fit then fails by itself.
ANSWER_S = 120.0
OF_DATA = ("image_shape", "num_classes", "num_train", "are_several")
SMALL = {"batch_size": 2, "accumulation_steps": 1, "effective_batch_size": None, "epochs": 1}


class Precheck:
    """The check of each combination of model and speed-ups that is not known to fit."""

    def __init__(self, study: StudyFile, data: PreparedWorkload | None) -> None:
        self._study = study
        self.cases = [] if data is None else [*_cases(study.space).values()][:MOST]
        self.process: subprocess.Popen[str] | None = None
        if data is not None and self.cases:
            self.process = self._start(data)

    def _start(self, data: PreparedWorkload) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "tune_speed.training.precheck"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        question = {
            "recipes": [self._study.space.build(params) | SMALL for params in self.cases],
            **{name: getattr(data, name) for name in OF_DATA},
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(question))
        process.stdin.close()
        # `communicate` would flush the closed file, which raises ValueError.
        process.stdin = None
        return process

    def refuse_misfits(self) -> None:
        """Waits for the answer. Raises: ConfigError with what does not fit, by file and line."""
        process = self.process
        if process is None:
            return
        try:
            answer, errors = process.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return
        assert process.returncode == 0, f"the check of the networks failed:\n{errors}"
        problems = []
        for problem in (Problem(**fields) for case in json.loads(answer) for fields in case):
            names = tuple(problem.path.removeprefix("recipe.").split("."))
            path = ("recipe", *written_path(self._study.space.tree, names))
            problems.append(
                Mistake(path, problem.must, problem.given, problem.hint).problem(self._study.source)
            )
        if problems:
            raise ConfigError(problems=tuple(dict.fromkeys(problems)))

    def cancel(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def _cases(space: SearchSpace) -> dict[str, Params]:
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
