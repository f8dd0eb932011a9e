"""A study's forecast from its trials in MLflow."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from making import WORKLOAD, make_evaluation, make_record, make_run

from tune_speed.api.forecasted import Forecasted
from tune_speed.cli import main
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking import Tracker, open_store
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload
from tune_speed.tuning.forecast import SHARES, forecast

ENDS = (0.71, 0.78, 0.82, 0.85, 0.86, 0.84, 0.88, 0.87)


def trial(number: int, end: float, *, target: float = 0.9) -> TrialRecord:
    """Returns a run of two seconds that ends with this accuracy, tried at another rate each."""
    evaluations = tuple(
        make_evaluation(step=step, train_s=float(step), accuracy=end * step / 2) for step in (1, 2)
    )
    status = Status.REACHED if end >= target else Status.MISSED
    params = {"optimizer.sgd.lr": 0.05 * (number + 1)}
    recipe: dict[str, Any] = {
        "model": "resnet20",
        "optimizer": {"sgd": {"lr": params["optimizer.sgd.lr"]}},
    }
    recipe |= {"lr_schedule": "one_cycle", "epochs": 1, "batch_size": 32}
    num_train = Workload.model_validate(WORKLOAD).num_train()
    assert num_train is not None
    whole = {"steps": Recipe.model_validate(recipe).steps(num_train=num_train)}
    run = make_run(status, time_s=2.0).model_copy(update={"evaluations": evaluations, **whole})
    record = make_record(f"t{number:04d}", status, study="mine", runs=(run,))
    at = {"started_at": f"2026-11-27T10:00:{4 * number:02d}+00:00"}
    at["finished_at"] = f"2026-11-27T10:00:{4 * number + 4:02d}+00:00"
    made: TrialRecord = record.model_copy(update={**at, "params": params, "recipe": recipe})
    return made


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNE_SPEED_STUDIES", str(tmp_path / "studies"))
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker = Tracker(open_store(uri), study="mine", study_tags={}, linger_s=0.02)
    for number, end in enumerate(ENDS):
        tracker.trial_finished(record=trial(number, end))
    assert tracker.close(timeout_s=30) == ()
    return uri


def test_a_harder_target_is_less_likely_and_one_that_was_met_is_certain(uri: str) -> None:
    chances = [forecast(uri, "mine", target=value).chance for value in (0.87, 0.9, 0.99)]
    assert chances[0] == 1.0 >= chances[1] > chances[2]
    met = forecast(uri, "mine", target=0.87)
    assert met.met_by == "t0006"
    assert met.first_hit_s == (0, 0, 0)
    assert forecast(uri, "mine").met_by is None


def test_what_is_within_reach_grows_with_the_budget(uri: str) -> None:
    found = forecast(uri, "mine", time_budget="1m")
    assert (found.trials, found.best) == (len(ENDS), 0.88)
    assert [row.share for row in found.rows] == list(SHARES)
    # A trial took four seconds of searching and two of training.
    assert found.rows[2].trials == pytest.approx(15, abs=1)
    assert found.rows[2].after_s <= 60
    for less, more in zip(found.rows, found.rows[1:], strict=False):
        assert less.chance <= more.chance
        assert 0.88 <= less.best.middle <= more.best.middle <= 1.0
        assert more.best.low <= more.best.middle <= more.best.high


def test_where_nothing_is_left_as_much_again_is_forecast(uri: str) -> None:
    assert forecast(uri, "mine").rows[2].trials == pytest.approx(len(ENDS), abs=1)


def test_too_few_trials_are_refused_in_words(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(open_store(uri), study="mine", study_tags={}, linger_s=0.02)
    tracker.trial_finished(record=trial(0, 0.5))
    assert tracker.close(timeout_s=30) == ()
    with pytest.raises(ConfigError, match="needs 3 trials that went to their end, but mine has 1"):
        forecast(uri, "mine")


@pytest.mark.parametrize("wrong", [{"target": 1.5}, {"time_budget": "soon"}])
def test_arguments_that_make_no_sense_are_refused_in_words(uri: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(1.5|soon) makes no sense: .*must be"):
        forecast(uri, "mine", **wrong)


def test_the_command_prints_a_table_or_json(
    uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["tune-speed", "forecast", "mine", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert not ended.value.code
        return capsys.readouterr().out

    found = Forecasted.of(uri, "mine", target=0.95)
    assert json.loads(command("--target", "0.95", "--json")) == found.as_dict()
    shown = command()
    assert "accuracy ≥ 0.9: " in shown
    assert "likely within the budget left (8 trials, best accuracy 0.8800)" in shown
    assert "met by t0006" in command("--target", "0.87")
