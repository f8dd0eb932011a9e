"""A study that seeks the least cost: its boards, what is certified of it, and what it refuses."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from making import make_record

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Recommended, TrialRecord
from tune_speed.experiments.certification.certify import find_estimates
from tune_speed.reporting.leaderboard.history import boards_of, history_markdown, record_history
from tune_speed.reporting.leaderboard.queries import Choice, find_boards, find_history
from tune_speed.reporting.page.study_page import study_page
from tune_speed.reporting.study.reader import read_study
from tune_speed.study.settings import SearchConfig
from tune_speed.study.space import SearchSpace, space_of
from tune_speed.tracking import Tracker, open_store
from tune_speed.tracking.reader.leaders import find_leaders
from tune_speed.tuning import search

PRICES = {"H200": 3.6}


def record_of(number: int, time_s: float, device: str) -> TrialRecord:
    made = make_record(f"t{number:04}", time_s=time_s, device=device, params={"lr": number})
    recipe = {"model": "resnet20", "optimizer": {"sgd": {"lr": 1.0 + number}}, "epochs": 1}
    return made.model_copy(update={"prices": PRICES, "recipe": {**recipe, "batch_size": 32}})


def recommended(number: int, expected_s: float, cost: float | None) -> Recommended:
    known = {"study": "study", "runs": 4, "hits": 4, "chance": 1.0}
    known |= {"chance_low": 0.9, "chance_high": 1.0}
    name = f"t{number:04}"
    return Recommended(trial_id=name, expected_s=expected_s, expected_cost=cost, **known)


@pytest.fixture(params=[True, False], ids=["by cost", "by time"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store of a search in which 9 s on two devices were luck: 18 s are expected."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{tmp_path / 'mlflow.db'}")
    tags = {"goal": "cost"} if request.param else {}
    tracker = Tracker(open_store(uri), study="study", study_tags=tags, search_id="s", linger_s=0.02)
    for each in (record_of(0, 24.0, "H200"), record_of(1, 9.0, "2 x H200")):
        tracker.trial_finished(record=each)
    costs = (0.024, 0.036) if request.param else (None, None)
    best = recommended(0, 24.0, costs[0]), recommended(1, 18.0, costs[1])
    tracker.recommend(best if request.param else best[::-1])
    assert tracker.close(timeout_s=60) == ()
    return uri, request.param


def test_boards_of_the_study_go_by_cost_where_it_seeks_that(store: Any) -> None:
    uri, by_cost = store
    boards = find_boards(Choice(uri=uri, study="study"), top=5)
    assert [board.order for board in boards] == (["cost"] if by_cost else ["time"] * 2)
    if by_cost:
        (board,) = boards
        assert board.recommended is not None and board.recommended.trial_id == "t0000"
        costs = [(row.trial_id, row.expected_cost) for row in board.rows]
        # By the luck of its only run the other would cost 0.018.
        assert [name for name, _ in costs] == ["t0000", "t0001"]
        assert [cost for _, cost in costs] == pytest.approx([0.024, 0.036])
    of_all, by_time = (find_boards(Choice(uri=uri), top=5, order=o) for o in (None, "time"))
    assert [board.order for board in of_all] == ["time"] * 2 and of_all == by_time


def test_the_page_ranks_all_devices_by_cost_first_where_the_study_seeks_that(store: Any) -> None:
    uri, by_cost = store
    page = study_page(read_study(uri, "study"), recipe_yaml=lambda _: "")
    text = " ".join(re.sub("<[^>]+>", " ", page).split())
    first, second = text.split("Estimates digits")[1:3]
    assert ("only money is ranked across them" in text) is by_cost
    assert ("nothing is ranked across them" in text) is not by_cost
    assert ("on 2 x H200, H200" in first[:120]) is by_cost, first[:200]
    if by_cost:
        assert first.index("t0000") < first.index("t0001")
        assert "on 2 x H200 " in second[:120]


def test_the_history_of_the_study_goes_by_cost_where_it_seeks_that(store: Any) -> None:
    """24 s on one device cost 0.024, and 9 s on two 0.018: 1.33 times less."""
    uri, by_cost = store
    held = find_history(Choice(uri=uri, study="study"), top=5)
    if by_cost:
        assert [each.trial_id for each in held] == ["t0001"]  # Both ended at one moment.
        assert held[0].expected_cost == pytest.approx(0.018)
    else:
        assert [len(board) for board in boards_of(held)] == [1, 1]
        assert [each.expected_cost for each in held] == [None, None]
    of_all = find_history(Choice(uri=uri), top=5)
    assert {each.expected_cost for each in of_all} == {None}


def at_minute(number: int, time_s: float, device: str) -> TrialRecord:
    finished_at = f"2026-01-01T00:0{number}:00.000+00:00"
    return record_of(number, time_s, device).model_copy(update={"finished_at": finished_at})


def test_a_record_of_cost_is_the_cheapest_so_far_of_all_devices() -> None:
    """At 3.6 an hour these cost 0.024, 0.018, 0.02 and 0.012."""
    every = [(24.0, "H200"), (9.0, "2 x H200"), (20.0, "H200"), (12.0, "H200")]
    trials = [at_minute(number, *each) for number, each in enumerate(every)]
    (board,) = boards_of(record_history(trials, by_cost=True))
    assert [each.trial_id for each in board] == ["t0000", "t0001", "t0003"]
    assert [each.device for each in board] == ["H200", "2 x H200", "H200"]
    assert [each.expected_cost for each in board] == pytest.approx([0.024, 0.018, 0.012])
    assert [each.speedup for each in board[1:]] == pytest.approx([0.024 / 0.018, 1.5])
    assert [each.is_clear for each in board] == [None, True, True]
    assert board[0].held_until == board[1].held_from
    text = history_markdown(board)
    assert "on H200, 2 x H200" in text and "| cheaper by |" in text.replace("  ", " ")
    assert "| 0.012 | H200 |" in text and "1.50×" in text
    assert [len(each) for each in boards_of(record_history(trials))] == [1, 3]
    unknown = [each.model_copy(update={"prices": {}}) for each in trials]
    assert record_history(unknown, by_cost=True) == ()


def test_what_is_certified_is_of_the_devices_that_are_recommended(store: Any) -> None:
    from tune_speed.experiments.certification.certify import _device_of_least_cost

    uri, by_cost = store
    device = _device_of_least_cost(find_leaders(uri, study="study", top=1).favourites)
    assert device == ("H200" if by_cost else None)
    if by_cost:
        (found,) = find_estimates(uri, "study", device)
        assert found.record.trial_id == "t0000"
    else:
        with pytest.raises(ConfigError, match="Choose with --device"):
            find_estimates(uri, "study", None)


def test_without_a_price_the_search_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_SPEED_PRICES", str(file := tmp_path / "prices.yaml"))
    nodes: Any = SimpleNamespace(device_type=None, machine=lambda: SimpleNamespace(device="H200"))
    space = SearchSpace.from_tree({"devices": {"choices": [2, 4]}})
    study: Any = SimpleNamespace(seeks_cost=True, space=space, search=SearchConfig())
    with pytest.raises(ConfigError, match="the price of an hour of H200") as caught:
        search._rates(study, nodes)
    assert str(file) in str(caught.value)
    file.write_text("H200: 3.6\n")
    rates = search._rates(study, nodes)
    assert rates is not None and rates.least_per_s == pytest.approx(0.002)
    study.seeks_cost = False
    assert search._rates(study, nodes) is None


def test_each_type_of_device_that_is_chosen_among_must_have_a_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_SPEED_PRICES", str(file := tmp_path / "prices.yaml"))
    types = ["H200", "A10", "T4"]
    resources = {"device_types": types, "price_per_hour": {"H200": 3.6}}
    chosen = SearchConfig.model_validate({"resources": resources})
    space = space_of({"recipe": {"epochs": 1}, "search": {"resources": resources}})
    study: Any = SimpleNamespace(seeks_cost=True, space=space, search=chosen)
    nodes: Any = SimpleNamespace(device_type=None)
    with pytest.raises(ConfigError, match="the price of an hour of A10 and T4"):
        search._rates(study, nodes)
    file.write_text("A10: 0.9\nT4: 0.4\n")
    rates = search._rates(study, nodes)
    assert rates is not None
    factors = [rates.factor({"device_type": each}) for each in types]
    assert factors == pytest.approx([9, 2.25, 1])
