import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import Done
from helpers.making import make_record, make_run

from tune_speed.api.results import Results
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.words import Device
from tune_speed.reporting.leaderboard.queries import ordered
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.reporting.leaderboard.tables import COST, ENERGY, as_csv, as_markdown, told
from tune_speed.reporting.leaderboard.text import caption
from tune_speed.reporting.page.site import boards_page
from tune_speed.tracking import Store, Tracker

PRICES = {"H200": 3.6, "A100": 0.9}


def record(
    number: int,
    time_s: float,
    device: str = "H200",
    *,
    power_w: float | None = None,
    prices: dict[str, float] = PRICES,
    lr: float | None = None,
) -> TrialRecord:
    run = make_run(time_s=time_s).model_copy(
        update={"power_w": power_w, "device": Device.model_validate(device)}
    )
    params = {"lr": number if lr is None else lr}
    made = make_record(f"t{number:04}", device=device, params=params, runs=(run,))
    return made.model_copy(update={"prices": prices})


def boards_of(*records: TrialRecord) -> list[Board]:
    return make_boards((each.trial_id, each) for each in records)


def order_of(board: Board) -> list[str]:
    return [row.trial_id for row in board.rows]


@pytest.fixture(autouse=True)
def _no_prices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNE_SPEED_PRICES", str(tmp_path / "prices.yaml"))


def test_devices_meet_by_money_each_with_its_own_clock() -> None:
    """The A100 takes three times as long, and costs a quarter."""
    fast, slow, other = record(0, 10.0), record(1, 30.0, "A100"), record(2, 50.0, "A100")
    boards = boards_of(fast, slow, other)
    assert len(boards) == 2 and ordered(boards, "time") == boards
    (board,) = ordered(boards, "cost")
    assert order_of(board) == ["t0001", "t0000", "t0002"]
    costs = [row.expected_cost for row in board.rows]
    assert costs == pytest.approx([30 * 0.9 / 3600, 10 * 3.6 / 3600, 50 * 0.9 / 3600])
    assert [row.time_to_target_s for row in board.rows] == [30.0, 10.0, 50.0]
    assert [row.rank for row in board.rows] == [1, 2, 3]
    assert (board.trials, board.reached) == (3, 3)
    assert "| A100 |" in as_markdown([board]) and "Ranked by expected cost" in caption(board)


def test_what_has_no_price_comes_last_without_a_rank() -> None:
    (board,) = ordered(boards_of(record(0, 1.0, "RTX"), record(1, 9.0)), "cost")
    assert [(row.trial_id, row.rank) for row in board.rows] == [("t0001", 1), ("t0000", None)]


def test_least_energy_is_not_the_least_time_and_devices_stay_apart() -> None:
    fast, frugal = record(0, 10.0, power_w=700.0), record(1, 12.0, power_w=400.0)
    first, second = ordered(boards_of(fast, frugal, record(2, 1.0, "A100", power_w=9.0)), "energy")
    assert order_of(first) == ["t0002"] and order_of(second) == ["t0001", "t0000"]
    assert [row.expected_energy_j for row in second.rows] == pytest.approx([4800.0, 7000.0])


def test_restarts_cost_too() -> None:
    """Of three runs of 10 s one misses: 15 s are expected."""
    runs = [make_run(status, time_s=10.0) for status in (Status.REACHED, Status.MISSED)]
    runs += [runs[0]]
    whole = record(0, 10.0).model_copy(update={"runs": tuple(runs), "kind": "certified"})
    (row,) = boards_of(whole)[0].rows
    assert row.expected_cost == pytest.approx(15 * 3.6 / 3600)


def test_scaling_is_the_time_on_one_device_over_n_times_that_on_n() -> None:
    one, four = record(0, 10.0, lr=0.1), record(1, 3.125, "4 x H200", lr=0.1)
    elsewhere = record(2, 2.0, "4 x H200", lr=0.7)
    (board,) = ordered(boards_of(one, four, elsewhere), "cost")
    found = {row.trial_id: row.scaling for row in board.rows}
    assert found == {"t0000": None, "t0001": pytest.approx(10 / (4 * 3.125)), "t0002": None}
    costs = {row.trial_id: row.expected_cost for row in board.rows}
    assert costs["t0001"] == pytest.approx(4 * 3.125 * 3.6 / 3600)
    assert "80%" in as_markdown([board])


@pytest.mark.parametrize("order", ["cost", "energy"])
def test_where_nothing_is_known_it_is_said_what_to_do(order: str) -> None:
    with pytest.raises(ConfigError, match=f"--sort {order} must have"):
        ordered(boards_of(record(0, 1.0, prices={})), order)
    assert ordered([], order) == []


def test_columns_are_there_only_where_they_are_known() -> None:
    (plain,) = boards_of(record(0, 1.0, prices={}))
    (known,) = boards_of(record(0, 1.0, power_w=300.0))
    assert told(plain, (COST, ENERGY)) == [] and told(known, (COST, ENERGY)) == [COST, ENERGY]
    assert COST not in as_markdown([plain])
    assert "Energy [J]" in boards_page([known]) and "Energy [J]" not in boards_page([plain])
    (row,) = csv.DictReader(io.StringIO(as_csv([known])))
    assert (row["expected_energy_j"], row["devices"]) == ("300.0", "H200")


def test_command_and_python_rank_by_cost_with_prices_that_came_later(
    tmp_path: Path, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker = Tracker(Store(uri), study="study", study_tags={}, search_id="s", linger_s=0.02)
    for each in (record(0, 10.0, prices={}), record(1, 30.0, "A100", prices={}, power_w=300.0)):
        tracker.trial_finished(record=each)
    assert tracker.close(timeout_s=30) == ()
    refused = call("leaderboard", "--sort", "cost", folder=tmp_path)
    assert refused.code == 2 and "prices.yaml" in refused.err
    (tmp_path / "prices.yaml").write_text("H200: 3.6\nA100: 0.9\n")
    (board,) = json.loads(call("leaderboard", "--sort", "cost", "--json", folder=tmp_path).out)
    assert [row["trial_id"] for row in board["rows"]] == ["t0001", "t0000"]
    (best,) = json.loads(call("best", "--sort", "cost", "--json", folder=tmp_path).out)
    assert [row["trial_id"] for row in best["rows"]] == ["t0001"]
    frame = Results(uri).best(sort="cost")
    assert list(frame["trial_id"]) == ["t0001", "t0000"]
    shown = call("show", "study/t0001", folder=tmp_path).out
    assert "9000 J to the target; 300 W in training" in shown
    assert "0.0075 to the target, at 0.9 an hour" in shown
