"""A study's forecast from its trials in MLflow."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.command import Done
from helpers.making import make_evaluation, make_record, make_run
from rich.table import Table

from tune_speed.api.forecasted import SHARES, Forecasted
from tune_speed.core.errors import ConfigError
from tune_speed.core.forecast import FINEST, LAW
from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking import Store, Tracker

ENDS = (0.71, 0.78, 0.82, 0.85, 0.86, 0.84, 0.88, 0.87)
SPENT_S = 4 * len(ENDS)
"""Each trial took four seconds of searching."""


def trial(number: int, end: float) -> TrialRecord:
    evaluations = (make_evaluation(step=2, train_s=2.0, accuracy=end),)
    run = make_run(Status.MISSED, time_s=2.0).model_copy(update={"evaluations": evaluations})
    record = make_record(f"t{number:04d}", Status.MISSED, study="mine", runs=(run,))
    at = {"started_at": f"2026-11-27T10:00:{4 * number:02d}+00:00"}
    at["finished_at"] = f"2026-11-27T10:00:{4 * number + 4:02d}+00:00"
    made: TrialRecord = record.model_copy(update=at)
    return made


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNE_SPEED_STUDIES", str(tmp_path / "studies"))
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker = Tracker(Store(uri), study="mine", study_tags={}, linger_s=0.02)
    for number, end in enumerate(ENDS):
        tracker.trial_finished(record=trial(number, end))
    assert tracker.close(timeout_s=30) == ()
    return uri


def test_a_harder_target_is_less_likely_and_one_that_was_met_is_certain(uri: str) -> None:
    found = [Forecasted.of(Store(uri), "mine", target=value) for value in (0.87, 0.9, 0.99)]
    assert found[0].chance == 1.0 > found[1].chance > found[2].chance
    assert (found[0].met_by, found[0].first_hit_s) == ("t0006", (0, 0, 0))
    assert Forecasted.of(Store(uri), "mine").met_by is None


def test_chances_are_those_of_the_law_and_times_are_seconds_of_searching(uri: str) -> None:
    found = Forecasted.of(Store(uri), "mine", time_budget="1m")
    fall = math.log((0.12 + FINEST) / (0.1 + FINEST))
    # Trials are all of one length.
    law = LAW.at(len(ENDS), len(ENDS))
    assert found.chance == pytest.approx(law.chance(fall, 60 / SPENT_S))
    assert found.first_hit_s == pytest.approx([SPENT_S * r for r in law.ratios(fall, 60 / SPENT_S)])
    assert (found.trials, found.best) == (len(ENDS), 0.88)
    assert [row.share for row in found.rows] == list(SHARES)
    assert found.rows[2].after_s == pytest.approx(60)
    assert found.rows[2].trials == pytest.approx(15)


def test_what_is_within_reach_grows_with_the_budget(uri: str) -> None:
    rows = Forecasted.of(Store(uri), "mine").rows
    # Nothing is left of the search: as much again is forecast.
    assert rows[2].after_s == pytest.approx(SPENT_S)
    for less, more in pairwise(rows):
        assert less.chance <= more.chance
        assert 0.88 <= less.best.middle <= more.best.middle <= 1.0
        assert more.best.low <= more.best.middle <= more.best.high


def test_too_few_trials_are_refused_in_words(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(Store(uri), study="mine", study_tags={}, linger_s=0.02)
    tracker.trial_finished(record=trial(0, 0.5))
    assert tracker.close(timeout_s=30) == ()
    with pytest.raises(ConfigError, match=r"needs 6 trials that went to their end.*mine has none"):
        Forecasted.of(Store(uri), "mine")


@pytest.mark.parametrize("wrong", [{"target": 1.5}, {"time_budget": "soon"}])
def test_arguments_that_make_no_sense_are_refused_in_words(uri: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"(1.5|soon) makes no sense: .*must be"):
        Forecasted.of(Store(uri), "mine", **wrong)


def test_the_command_prints_a_table_or_json(
    uri: str, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Done], tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    def command(*arguments: str) -> str:
        done = call("forecast", "mine", *arguments, folder=tmp_path)
        assert done.code == 0, done.err
        return done.out

    found = Forecasted.of(Store(uri), "mine", target=0.95)
    assert json.loads(command("--target", "0.95", "--json")) == found.as_dict()
    shown = command()
    assert "accuracy ≥ 0.9: " in shown
    assert "likely within the budget left (8 whole runs, best accuracy 0.8800)" in shown
    assert "hold less" not in shown and "hold less" in command("--time-budget", "2m")
    assert "met by t0006" in command("--target", "0.87")


def test_a_goal_has_no_column_of_chances(uri: str) -> None:
    found = Forecasted.of(Store(uri), "mine")
    sought = found.target.model_copy(update={"within_s": 60.0})
    of_target, of_goal = (
        [column.header for column in part.columns]
        for each in (found, replace(found, target=sought))
        for part in each.parts()
        if isinstance(part, Table)
    )
    assert "chance" in of_target
    assert of_goal == [header for header in of_target if header != "chance"]
