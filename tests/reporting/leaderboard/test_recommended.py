import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.command import Done
from helpers.making import make_record
from helpers.tracking.stores import read_by_mlflow

from tune_speed.core.comparability import board_key
from tune_speed.core.records import Recommended, Status, TrialRecord
from tune_speed.core.text import Interval
from tune_speed.experiments.certification.certify import choose_finalists
from tune_speed.reporting.leaderboard.queries import find_boards
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.reporting.leaderboard.tables import as_json
from tune_speed.reporting.page.answer import answer_of
from tune_speed.reporting.page.site import study_page
from tune_speed.reporting.study.reader import read_study
from tune_speed.tracking import Store, Tracker
from tune_speed.tracking.reader import leaders
from tune_speed.tracking.reader.tables import TrackedTrial

SURE = Recommended(
    study="study",
    trial_id="t0001",
    runs=4,
    hits=3,
    chance=Interval(0.7, 0.4, 0.9),
    expected_s=2.9,
)
ENDS = ("lr, 3 of the best 3 at 2: better ones may lie above that", "epochs, 3 of the best 3 at 1")
LUCKY = SURE.model_copy(update={"trial_id": "t0000", "hits": 1, "runs": 3, "expected_s": 3.5})


def record_of(number: int, *, time_s: float, status: Status = Status.REACHED) -> TrialRecord:
    record = make_record(f"t{number:04}", status, time_s=time_s, params={"lr": number})
    optimizer = {"sgd": {"lr": 0.5 + number}}
    recipe = {"model": "resnet20", "optimizer": optimizer, "epochs": 1, "batch_size": 32}
    return record.model_copy(update={"recipe": recipe})


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker = Tracker(Store(uri), study="study", study_tags={}, search_id="s", linger_s=0.02)
    for record in (record_of(0, time_s=1.0), record_of(1, time_s=2.0), record_of(2, time_s=1.5)):
        tracker.trial_finished(record=record)
    other = LUCKY.model_copy(update={"trial_id": "t0002", "expected_s": 4.0})
    tracker.recommend((SURE, LUCKY, other))
    tracker.ended(range_ends="; ".join(ENDS))
    assert tracker.close(timeout_s=60) == ()
    return uri


@pytest.mark.parametrize("is_direct", [True, False])
def test_board_has_what_the_search_recommends(
    uri: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether the store's tables are read, or MLflow is asked."""
    if not is_direct:
        read_by_mlflow(monkeypatch, tmp_path)
    (board,) = find_boards(Store(uri), top=1)
    # Two others were faster, but the board has what is recommended.
    (row,) = board.rows
    assert (row.trial_id, row.hits, row.n, row.chance) == ("t0001", 3, 4, 0.7)
    assert board.recommended is not None
    assert board.recommended.model_copy(update={"run_id": ""}) == SURE
    (found,) = leaders.find_leaders(Store(uri)).favourites.values()
    assert [each.trial_id for each in found] == ["t0001", "t0000", "t0002"]
    for with_misses in (False, True):
        (board,) = find_boards(Store(uri), top=3, with_misses=with_misses)
        assert [row.trial_id for row in board.rows] == ["t0001", "t0000", "t0002"]


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("with_misses", [True, False])
def test_board_and_page_say_at_which_ends_of_ranges_the_best_lie(
    uri: str,
    is_direct: bool,
    with_misses: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if not is_direct:
        read_by_mlflow(monkeypatch, tmp_path)
    (board,) = find_boards(Store(uri), top=1, with_misses=with_misses)
    assert json.loads(as_json([board]))[0]["range_ends"] == {"study": list(ENDS)}
    page = study_page(read_study(Store(uri), "study"), recipe_yaml=lambda trial: "")
    answer = page[page.index('class="card answer') : page.index("How sure is it?")]
    assert f"At the end of its range: {ENDS[0]}; {ENDS[1]}." in answer


def test_without_such_ranges_nothing_is_said_and_of_certified_rows_neither() -> None:
    ends = {"study": ENDS, "other": ENDS}
    trials = [(None, record_of(0, time_s=1.0))]
    (board,) = make_boards(trials, range_ends={"study": ()})
    assert board.range_ends == {}
    (board,) = make_boards(trials, range_ends=ends)
    assert board.range_ends == {"study": ENDS}
    certified = trials[0][1].model_copy(update={"kind": "certified"})
    assert make_boards([(None, certified)], range_ends=ends)[0].range_ends == {}


def test_of_two_searches_the_less_expected_time_is_recommended() -> None:
    key = board_key(record_of(0, time_s=1.0))
    board = leaders.schema.board_id(key)
    other = SURE.model_copy(update={"study": "other", "expected_s": 2.0})
    said = [(board, (SURE, LUCKY)), ("", ()), (board, (other,)), ("another board", (LUCKY,))]
    assert leaders.favourites_on([key], said) == {key: [other, SURE, LUCKY]}


def test_best_names_it_and_exports_its_recipe(
    uri: str, tmp_path: Path, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call("best", "--export", "best.yaml", folder=tmp_path)
    assert done.code == 0, done.err
    told = " ".join(done.out.split())
    assert "Recommended: study/t0001: 3 of 4 runs met the target" in told
    assert "70% (40% to 90%); expected time with restarts 2.900 s" in told
    exported = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert exported["recipe"]["optimizer"]["sgd"]["lr"] == 1.5
    (board,) = call("best", "--json", folder=tmp_path).json
    assert board["recommended"]["trial_id"] == "t0001"


def test_page_answers_with_it_and_names_the_fastest_run(uri: str) -> None:
    view = read_study(Store(uri), "study")
    (part,) = view.parts
    answer: Any = answer_of(part, view.boards)
    assert (answer.lead, answer.winner.record.trial_id) == ("Recommended", "t0001")
    assert "3 of 4 runs of t0001 met the target" in answer.sure[0]
    assert any("fastest single run, t0000" in line for line in answer.sure)


def test_finalists_are_the_favourites_first_each_recipe_once() -> None:
    again = record_of(4, time_s=0.1).model_copy(update={"recipe": record_of(1, time_s=2.0).recipe})
    missed = record_of(3, time_s=9.0, status=Status.MISSED)
    records = (record_of(0, time_s=1.0), record_of(1, time_s=2.0), again, missed)
    trials = [TrackedTrial(r.trial_id, "1", r) for r in records]
    chosen = choose_finalists(trials, 3, ["t0003", "t0001"])
    assert [each.record.trial_id for each in chosen] == ["t0003", "t0001", "t0000"]
    fastest = choose_finalists(trials, 3)
    assert [each.record.trial_id for each in fastest] == ["t0004", "t0000"]
