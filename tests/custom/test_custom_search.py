"""Training functions of one's own, searched on a real Ray and certified."""

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tune_speed
from tune_speed.api.inputs import overrides_of, own_study_from
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, Timing, TrialRecord
from tune_speed.custom import OwnRun

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {"search.policy": "random", "search.seed": 1, "search.concurrent": 1}
TASK: dict[str, Any] = {"mode": "anytime", "max_train_s": 20}


def climbs(params: dict[str, Any], run: OwnRun) -> None:
    """Nears 1 the quicker the larger its rate, and pretends to work meanwhile."""
    with run.timed():
        for step in range(1, 201):
            time.sleep(0.002)
            run.step()
            if step % 5 == 0:
                metric = 1 - math.exp(-params["rate"] * step / 50)
                run.evaluated(step=step, metric=metric, epoch=step / 5, samples=step * 8)


def misbehaves(params: dict[str, Any], run: OwnRun) -> None:
    how = params["how"]
    if how == "hangs":
        threading.Event().wait(600)
    if how == "exits":
        raise SystemExit(3)
    if how == "silent":
        return
    with run.timed():
        for step in range(1, 200):
            time.sleep(0.005)
            if how == "raises" and step == 3:
                raise KeyError("weights")
            value = float("nan") if how == "nan" and step == 3 else step / 100
            run.evaluated(step=step, metric=value, **_clock(how, step))


def _clock(how: str, step: int) -> dict[str, float]:
    return {"train_s": 0.003 / step} if how == "backwards" else {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    here = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_STUDIES", str(here / "studies"))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{here}/mlflow.db")
        yield here


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test's environment is set anew; this module's studies are in one place."""
    monkeypatch.setenv("TUNE_SPEED_STUDIES", str(folder / "studies"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")


@pytest.fixture(scope="module")
def searched(folder: Path) -> tune_speed.Study:
    return tune_speed.search(
        {"rate": {"low": 0.5, "high": 2.0}, "depth": 3},
        train=climbs,
        target=0.9,
        workload=TASK,
        trials=3,
        set={**QUICK, "certify": {"top": 1, "seeds": 2, "final": 0}},
    )


def test_search_of_a_function_finds_its_fastest_parameters(searched: tune_speed.Study) -> None:
    assert searched.name == "climbs"
    assert len(searched.records) == 3
    assert {record.status for record in searched.records} <= {
        Status.REACHED,
        Status.MISSED,
        Status.CAPPED,
    }
    best = searched.best
    assert best is not None and best.time_to_target_s is not None
    assert searched.params == {"rate": best.params["rate"], "depth": 3}
    rates = [r.params["rate"] for r in searched.records if r.status == Status.REACHED]
    assert best.params["rate"] == max(rates)
    # Reached at the first of two evaluations past the closed form's crossing.
    step = math.ceil(-50 * math.log(0.1) / best.params["rate"] / 5) * 5
    assert best.runs[0].evaluations[-2].step == step
    assert best.runs[0].timing in (Timing.EXCLUSIVE, Timing.DISTURBED, Timing.SHARED)


def test_trials_of_a_function_are_in_mlflow_with_their_curves(searched: tune_speed.Study) -> None:
    trials = searched.results().trials("climbs", kind="estimate")
    assert len(trials) == 3
    assert str(searched).count("t000") >= 1
    assert "climbs-accuracy-0.9" in str(searched)
    assert "<table" in searched._repr_html_()


def test_function_is_certified_on_fresh_seeds_and_the_test_part(
    searched: tune_speed.Study,
) -> None:
    assert searched.certification is not None
    (record,) = searched.certification.records
    assert record.evaluated_on == "test" and record.kind == "certified"
    assert {run.status for run in record.runs} == {Status.REACHED}
    searched_seeds = {r.runs[0].seed for r in searched.records}
    assert searched_seeds.isdisjoint(run.seed for run in record.runs)
    assert record.certificate is not None
    task = record.certificate["task"]
    assert task["function_hash"] == record.workload["function_hash"]
    assert task["dataset"] is None
    assert record.certificate["recipe"]["resolved"] == {"params": searched.params}


@pytest.fixture(scope="module")
def misbehaved(folder: Path) -> dict[str, TrialRecord]:
    hows = ["hangs", "raises", "nan", "backwards", "silent", "exits"]
    study = tune_speed.search(
        {"how": {"choices": [*hows, "behaves"]}},
        train=misbehaves,
        target={"metric": "progress", "value": 0.2},
        workload=TASK,
        trials=7,
        set={
            "search.sampler": "grid",
            "search.concurrent": 2,
            "search.hang_after": "6s",
            "search.points_to_evaluate": [{"how": how} for how in hows],
        },
    )
    return {record.params["how"]: record for record in study.records}


def test_one_bad_trial_ends_no_search(misbehaved: dict[str, TrialRecord]) -> None:
    assert misbehaved["behaves"].status == Status.REACHED
    assert len(misbehaved) == 7


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("raises", Status.FAILED, "KeyError: 'weights'"),
        ("nan", Status.DIVERGED, "the progress is nan after 3 steps"),
        ("backwards", Status.FAILED, "train_s must not run backwards"),
        ("silent", Status.FAILED, "must call run.evaluated"),
        ("hangs", Status.FAILED, "hung: no step for"),
        ("exits", Status.FAILED, "SystemExit"),
    ],
)
def test_misbehaving_function_has_its_status_and_traceback(
    misbehaved: dict[str, TrialRecord], how: str, status: Status, words: str
) -> None:
    record = misbehaved[how]
    assert record.status == status
    assert words in str(record.stop_reason)
    assert record.time_to_target_s is None
    traceback = record.runs[0].traceback or ""
    assert ("misbehaves" in traceback) == (how not in ("nan", "silent"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": None}, "workload.target"),
        ({"target": float("inf")}, "finite"),
        ({"workload": "digits"}, "must be a dict of target, mode and max_train_s"),
        ({"workload": {"dataset": {"name": "digits"}}}, "no field `dataset`"),
        ({"set": {"ratte": 1.0}}, "no field `ratte`; did you mean `rate`"),
        ({"set": {"rate.highest": 1.0}}, "no field `rate.highest`"),
        ({"set": {"rate.high": 0.1}}, "recipe.rate"),
        ({"target": {"metric": "loss", "value": 0.1}}, "must be min for loss"),
        ({"target": {"metric": "a b", "value": 0.1}}, "workload.target.metric"),
        ({"space": {}}, "recipe"),
        ({"space": {"rate": {"low": 2.0, "high": 1.0}}}, "recipe.rate"),
        ({"set": {"search.concurrent": "auto"}}, "must be a number for a training function"),
        ({"set": {"search.trialz": 3}}, "trialz"),
        ({"train": lambda params: None}, r"takes \(params\)"),
    ],
)
def test_mistakes_are_refused_before_any_trial(changes: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"train": climbs, "target": 0.9, "trials": 1, **changes}
    space = arguments.pop("space", {"rate": {"low": 0.5, "high": 2.0}})
    with pytest.raises(ConfigError, match=words):
        tune_speed.search(space, **arguments)


def test_values_of_a_function_are_overridden_by_their_names() -> None:
    space = {"rate": {"low": 0.5, "high": 2.0}, "net": {"choices": {"a": {"width": 3}, "b": {}}}}
    overrides = overrides_of({"rate.high": 1.5, "net.a.width": 5, "workload.max_train_s": 7})
    study = own_study_from(space, climbs, target=0.9, workload=None, overrides=overrides)
    assert study.space.tree["rate"] == {"low": 0.5, "high": 1.5}
    assert study.space.build({"rate": 1.0, "net": "a"}) == {"rate": 1.0, "net": {"a": {"width": 5}}}
    assert study.workload.max_train_s == 7
    fixed = own_study_from(
        space, climbs, target=0.9, workload=None, overrides=overrides_of({"rate": 1.0})
    )
    assert [parameter.name for parameter in fixed.space.parameters] == ["net"]
