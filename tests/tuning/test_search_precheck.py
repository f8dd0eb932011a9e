import io
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.study.file import StudyFile, load_study
from tune_speed.tuning import precheck
from tune_speed.tuning.admission import PreparedWorkload
from tune_speed.tuning.precheck import Precheck

DIGITS = PreparedWorkload("", "", (8, 8, 1), 10, 1150, ())
STUDY = """\
workload: digits
recipe:
  model:
    choices:
      resnet20:
      {model}:
  optimizer: {{sgd: {{lr: {{low: 0.1, high: 1.0}}}}}}
  epochs: 2
  batch_size: 64
  speedups:
    depth: {{choices: {{off: , {technique}: }}}}
"""


def study(folder: Path, *, model: str = "preact_resnet", technique: str = "off") -> StudyFile:
    text = STUDY.format(model=model, technique=technique).replace("{off: , off: }", "[off]")
    (folder / "a_study.yaml").write_text(text)
    return load_study(folder / "a_study.yaml")


def refused_at(question: Precheck) -> set[tuple[int | None, str]]:
    with pytest.raises(ConfigError) as refused:
        question.refuse_misfits()
    return {(problem.line, problem.path) for problem in refused.value.problems}


def test_networks_that_take_any_image_are_not_asked_about(tmp_path: Path) -> None:
    assert Precheck(study(tmp_path), DIGITS).process is None
    assert Precheck(load_study("digits_quickstart"), DIGITS).process is None


def test_each_combination_of_network_and_techniques_is_asked_about_once(tmp_path: Path) -> None:
    a_study = study(tmp_path, model="mobilenet", technique="stochastic_depth")
    question = Precheck(a_study, DIGITS)
    question.cancel()
    asked = {(case["model"], case["speedups.depth"]) for case in question.cases}
    assert asked == {
        ("mobilenet", "off"),
        ("resnet20", "stochastic_depth"),
        ("mobilenet", "stochastic_depth"),
    }
    assert len(question.cases) == 3


class Here:
    """Answers as the process of its command would, in this one; the slow test below starts one."""

    def __init__(self, command: list[str], **_: Any) -> None:
        assert command[:2] == [sys.executable, "-m"]
        self.stdin: Any = self
        self.returncode: int | None = None
        self._module, self._asked = command[2], io.StringIO()

    def write(self, text: str) -> None:
        self._asked.write(text)

    def close(self) -> None:
        self._asked.seek(0)

    def communicate(self, timeout: float) -> tuple[str, str]:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
            patch.setattr(sys, "stdin", self._asked)
            patch.delitem(sys.modules, self._module, raising=False)
            runpy.run_module(self._module, run_name="__main__")
        self.returncode = 0
        return out.getvalue(), ""


@pytest.mark.parametrize(("model", "is_fit"), [("preact_resnet", True), ("vgg16_bn", False)])
def test_answer_refuses_what_does_not_fit_by_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, is_fit: bool
) -> None:
    here = SimpleNamespace(**vars(subprocess) | {"Popen": Here})
    monkeypatch.setattr(precheck, "subprocess", here)
    a_study = study(tmp_path, model=model, technique="stochastic_depth")
    question = Precheck(a_study, DIGITS)
    if is_fit:
        question.refuse_misfits()
        return
    assert {line for line, _ in refused_at(question)} == {3}


@pytest.mark.parametrize("model", ["resnet20", "resnet", "preact_resnet", "speednet"])
def test_a_missing_weights_file_is_refused_by_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    here = SimpleNamespace(**vars(subprocess) | {"Popen": Here})
    monkeypatch.setattr(precheck, "subprocess", here)
    written = STUDY.format(model="resnet20", technique="off").replace("{off: , off: }", "[off]")
    network = f"  model: {{{model}: {{weights_file: nothing.pt}}}}\n"
    before, _, after = written.partition("  model:\n")
    text = before + network + after.partition("resnet20:\n      resnet20:\n")[2]
    (tmp_path / "a_study.yaml").write_text(text)
    a_study = load_study(tmp_path / "a_study.yaml")
    question = Precheck(a_study, DIGITS)
    assert refused_at(question) == {(3, "recipe.model")}


@pytest.mark.slow
def test_misfits_are_all_named_with_their_lines(tmp_path: Path) -> None:
    a_study = study(tmp_path, model="vgg16_bn", technique="stochastic_depth")
    question = Precheck(a_study, DIGITS)
    assert {line for line, _ in refused_at(question)} == {3}
    a_study = study(tmp_path, model="plain_cnn", technique="stochastic_depth")
    question = Precheck(a_study, DIGITS)
    assert refused_at(question) == {(11, "recipe.speedups.depth.stochastic_depth")}


@pytest.mark.slow
def test_what_fits_passes(tmp_path: Path) -> None:
    a_study = study(tmp_path, technique="stochastic_depth")
    question = Precheck(a_study, DIGITS)
    question.refuse_misfits()


def test_process_is_gone_once_it_is_withdrawn(tmp_path: Path) -> None:
    question = Precheck(study(tmp_path, technique="stochastic_depth"), DIGITS)
    question.cancel()
    assert question.process is not None and question.process.poll() is not None
    question.cancel()
