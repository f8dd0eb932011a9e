"""The examples of one's own training functions, as a user runs them: real Ray, real trainings."""

import contextlib
import importlib.util
import itertools
import math
import runpy
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from helpers.command import finished, here
from helpers.custom.runs import CountedRun, run_on

import tune_speed
from tune_speed.api.inputs import overrides_of, own_study_from
from tune_speed.core.records import Status
from tune_speed.core.targets import Target
from tune_speed.custom import StopTraining
from tune_speed.study.file import StudyFile

FOLDER = Path(__file__).parent
PARAMS: dict[str, dict[str, Any]] = {
    "own_loop": {"lr": 0.1, "batch_size": 32, "width": 64, "momentum": 0.9},
    "tabular": {"eta0": 0.03, "alpha": 1e-4, "epochs": 3, "average": True},
    "lightning_digits": {"lr": 0.01, "width": 16, "batch_size": 32},
    "transformers_text": {"learning_rate": 0.003, "batch_size": 16, "layers": 1},
}
"""Values by example that learn."""
BATCHES = {"own_loop": 38, "tabular": 11, "lightning_digits": 38, "transformers_text": 32}
"""Optimizer steps of an epoch: rows of the training part by rows of a batch."""


def module_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_of(name: str, mode: Literal["anytime", "fixed_length"], **options: Any) -> CountedRun:
    """Returns the run of the example's training function, which has ended."""
    torch.manual_seed(1)
    with run_on(time.perf_counter, mode=mode, **options) as run:
        with contextlib.suppress(StopTraining):
            module_of(name).my_train(PARAMS[name], run)
        run.returned()
    return run


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning's and Hugging Face's own.
@pytest.mark.parametrize("name", ["own_loop", "lightning_digits", "transformers_text"])
def test_training_without_an_end_ends_when_the_target_is_met(name: str) -> None:
    run = run_of(name, "anytime", value=0.9, max_train_s=60.0)
    assert run.outcome is not None and run.outcome.status == Status.REACHED
    holds = [each.accuracy is not None and each.accuracy >= 0.9 for each in run.evaluations]
    assert holds[-2:] == [True, True]
    assert (True, True) not in itertools.pairwise(holds[:-1])
    assert [each.step for each in run.evaluations] == [
        BATCHES[name] * epoch for epoch in range(1, len(run.evaluations) + 1)
    ]
    assert run.counted_steps == run.evaluations[-1].step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PARAMS)
def test_training_ends_at_the_first_step_past_the_limit(name: str) -> None:
    run = run_of(name, "anytime", value=0.9, max_train_s=1e-9)
    assert run.outcome is not None and run.outcome.status == Status.CAPPED
    assert run.counted_steps == 1


def test_table_is_learnt_in_as_many_passes_as_the_search_chose() -> None:
    target = Target(metric="log_loss", value=0.3, mode="min")
    run = run_of("tabular", "fixed_length", target=target)
    assert [each.step for each in run.evaluations] == [11, 22, 33]
    # Of no use would be ln 2, that of saying one half of each row.
    assert 0 < run.evaluations[-1].values["log_loss"] < math.log(2) / 2
    assert run.outcome is not None and run.outcome.status == Status.REACHED
    assert run.outcome.time_to_target_s == run.evaluations[-1].train_s


@pytest.mark.parametrize(("name", "made_by"), [("own_loop", "digits"), ("tabular", "tumours")])
def test_parts_share_no_row_and_are_always_the_same(name: str, made_by: str) -> None:
    first, second = (getattr(module_of(name), made_by)() for _ in range(2))
    parts = [[tuple(map(float, row)) for row in features] for features, _ in first.values()]
    assert parts == [[tuple(map(float, row)) for row in x] for x, _ in second.values()]
    rows = list(itertools.chain(*parts))
    assert len(set(rows)) == len(rows) == {"own_loop": 1797, "tabular": 569}[name]


@pytest.mark.filterwarnings("ignore")  # Lightning's and Hugging Face's own.
@pytest.mark.parametrize("name", PARAMS)
def test_search_of_the_example_is_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it needs no Ray; loops like the first two are searched from the READMEs."""
    found: list[StudyFile] = []

    def search(*, trials: int, study: str, **given: Any) -> None:
        assert (trials, study) == (3, name)
        found.append(own_study_from(**given, overrides=overrides_of({})))

    monkeypatch.setattr(tune_speed, "search", search)
    monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{name}.py"), "3"])
    runpy.run_path(sys.argv[0], run_name="__main__")
    assert [accepted.space.tree.keys() for accepted in found] == [PARAMS[name].keys()]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning's own.
def test_search_of_a_library_s_loop_meets_its_target(tmp_path: Path) -> None:
    """As `python lightning_digits.py 1` does, but in this process; the others' loops pass above."""
    with here(tmp_path) as (out, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(FOLDER / "lightning_digits.py"), "1"])
        runpy.run_path(sys.argv[0], run_name="__main__")
    ((run,),) = [record["runs"] for record in finished(tmp_path, "lightning_digits")]
    assert run["status"] == "reached", run["stop_reason"]
    assert 0 < run["time_to_target_s"] <= run["clocks"]["train_s"] < run["clocks"]["wall_s"]
    assert "lightning_digits/t000" in out.getvalue()
