import re
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_record

from tune_speed.core.records import Recommended, Status, TrialRecord
from tune_speed.experiments.certification.certify import find_estimates
from tune_speed.reporting.leaderboard.queries import find_boards, find_history
from tune_speed.reporting.page.site import study_page
from tune_speed.reporting.study.reader import read_study
from tune_speed.reporting.watch.screen import standing
from tune_speed.reporting.watch.status import glance
from tune_speed.tracking import Query, Store, Tracker
from tune_speed.training.workload import Workload


class ByCost(Recommended):
    expected_cost: float


def recommended(number: int, expected_s: float, cost: float) -> ByCost:
    known: dict[str, Any] = {"study": "study", "runs": 4, "hits": 4}
    return ByCost(trial_id=f"t{number:04}", expected_s=expected_s, expected_cost=cost, **known)


@pytest.fixture
def by_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path / 'mlflow.db'}")
    tags = {"goal": "cost"}
    tracker = Tracker(Store(uri), study="study", study_tags=tags, search_id="s", linger_s=0.02)
    for number, (time_s, device) in enumerate([(24.0, "H200"), (9.0, "2 x H200"), (30.0, "A10")]):
        params = {"lr": number, "device_type": device}
        made = make_record(f"t{number:04}", time_s=time_s, device=device, params=params)
        tracker.trial_finished(record=made.model_copy(update={"prices": {"H200": 3.6}}))
    tracker.recommend((recommended(0, 24.0, 0.024), recommended(1, 18.0, 0.036)))
    assert tracker.close(timeout_s=60) == ()
    return uri


def test_runs_of_a_search_for_the_least_cost_are_on_the_boards_of_their_time(by_cost: str) -> None:
    boards = find_boards(Store(by_cost), Query(study="study"), top=5)
    found = {board.device: [row.trial_id for row in board.rows] for board in boards}
    assert found == {"H200": ["t0000"], "2 x H200": ["t0001"], "A10": ["t0002"]}
    assert {board.order for board in boards} == {"time"}
    (whole,) = find_boards(Store(by_cost), Query(study="study"), top=5, order="cost")
    assert [row.trial_id for row in whole.rows] == ["t0001", "t0000", "t0002"]
    history = find_history(Store(by_cost), Query(study="study"), top=5)
    assert sorted(held.trial_id for held in history) == ["t0000", "t0001", "t0002"]
    assert [e.record.trial_id for e in find_estimates(Store(by_cost), "study", "A10")] == ["t0002"]


def test_the_page_and_watch_show_a_search_for_the_least_cost(by_cost: str) -> None:
    view = read_study(Store(by_cost), "study")
    page = " ".join(re.sub("<[^>]+>", " ", study_page(view, recipe_yaml=lambda _: "")).split())
    assert "nothing is ranked across them" in page
    assert all(f"t000{number}" in page for number in range(3))
    assert "3 trials" in standing(glance(view))


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path / 'mlflow.db'}")
    target = {"metric": "accuracy", "value": 0.94, "values": [0.9, 0.94], "weights": [1, 2]}
    lower = {"value": 0.9, "workload_name": "digits-accuracy-0.9", "workload_hash": "l" * 16}
    hit, miss = make_record("t0000", time_s=3.0), make_record("t0001", Status.MISSED)
    trees = [each.model_dump(mode="json") for each in (hit, miss)]
    for tree in trees:
        tree["runs"][0]["crossings"] = [[0.9, 2.0]]
        tree |= {"workload": {**tree["workload"], "target": target}, "lower_targets": [lower]}
    alone = make_record("t0000", time_s=4.0, study="alone")
    names = {"workload_name": lower["workload_name"], "workload_hash": lower["workload_hash"]}
    for study, records in {
        "study": list(map(TrialRecord.model_validate, trees)),
        "alone": [alone.model_copy(update=names)],
    }.items():
        tracker = Tracker(Store(uri), study=study, study_tags={}, search_id=study)
        for record in records:
            tracker.trial_finished(record=record)
        assert tracker.close(timeout_s=60) == ()
    return uri


def test_runs_for_several_targets_are_on_the_board_of_the_hardest(several: str) -> None:
    boards = find_boards(Store(several), top=5, with_misses=True)
    found = {board.target: [(row.study, row.trial_id) for row in board.rows] for board in boards}
    assert found == {0.94: [("study", "t0000"), ("study", "t0001")], 0.9: [("alone", "t0000")]}
    (board,) = find_boards(Store(several), target=0.9, top=5)
    assert [row.study for row in board.rows] == ["alone"]
    view = read_study(Store(several), "study")
    assert [part.target.value for part in view.parts] == [0.94]
    assert "t0001" in study_page(view, recipe_yaml=lambda _: "")


def test_a_run_for_several_targets_may_be_trained_again(several: str) -> None:
    for each in find_estimates(Store(several), "study", None):
        assert Workload.model_validate(each.record.workload).target.value == 0.94
