"""The axis on which curves are compared, and what the model is given of them."""

import math
from typing import Any

import numpy as np
import pytest

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Cost, Outcome, PriorTrial, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.history import LUCK, History, Trial
from tune_speed.tuning.policy.settings import Parts

SPACE = SearchSpace.from_tree({"epochs": {"low": 1, "high": 40}})


def history_of(mode: Any = "fixed_length", *, limit_s: float = 100.0, **costs: Any) -> History:
    def cost_of(params: Any) -> Cost | None:
        return Cost(2.0 * params["epochs"], **costs) if params["epochs"] < 40 else None

    return History(Encoder(SPACE), SearchTarget(0.9, mode, limit_s), cost_of, Parts())


def run(
    history: History, number: int, status: Status, *points: tuple[float, float], epochs: int = 5
) -> Trial:
    history.begin(Proposal(f"t{number:04d}", {"epochs": epochs}))
    seconds, metric = (np.array([p[i] for p in points]) for i in range(2))
    end_s = points[-1][0] if points else 0.0
    return history.finish(f"t{number:04d}", Outcome(status, end_s, Curve(seconds, metric)))


def y_of(metric: float) -> float:
    return math.copysign(math.log1p(abs(metric - 0.9) / 0.02), metric - 0.9)


def test_schedules_are_compared_at_32_places_and_clocks_at_eighths_of_six_octaves() -> None:
    places = history_of().table().places
    np.testing.assert_allclose(places, np.linspace(1 / 32, 1, 32))
    clocks = history_of("anytime").table().places
    np.testing.assert_allclose(clocks, np.geomspace(2.0**-6, 1, 49))


@pytest.mark.parametrize("status", [Status.MISSED, Status.CAPPED])
def test_row_of_a_run_is_on_its_own_schedule_where_the_length_is_fixed(status: Status) -> None:
    history = history_of()
    run(history, 0, status, (5.0, 0.5), (8.0, 0.8))
    (row,) = history.table()._table
    # A whole run ended at 8 s, a stopped one was to take 10 s.
    end_s = 8.0 if status is Status.MISSED else 10.0
    start, half, last = y_of(0.0), y_of(0.5), y_of(0.8)
    expected = np.interp(np.arange(1, 33) / 32 * end_s, [0, 5, 8], [start, half, last])
    expected[np.arange(1, 33) / 32 * end_s > 8.0] = math.nan
    np.testing.assert_allclose(row, expected)
    assert np.isnan(row).sum() == (0 if status is Status.MISSED else 7)


def test_row_of_a_run_is_on_the_clock_to_beat_where_the_length_is_free() -> None:
    history = history_of("anytime")
    slow = run(history, 0, Status.MISSED, (20.0, 0.7), (40.0, 0.8))
    before = history.table()
    assert before is history.table()
    assert slow.row is not None and slow.row[0] is None
    run(history, 1, Status.REACHED, (10.0 / (1 + LUCK), 0.94), epochs=6)
    table = history.table()
    assert slow.row[0] == 10.0 and len(table) == 2
    # By 10 s it was halfway to 0.7, by 5 s a quarter.
    start = y_of(0.0)
    assert table._table[0, -1] == pytest.approx((start + y_of(0.7)) / 2)
    assert table._table[0, -9] == pytest.approx(start + (y_of(0.7) - start) / 4)
    assert table._table[1, -1] == pytest.approx(math.log(3))


def test_schedule_whose_end_nobody_knows_is_as_long_as_the_longest() -> None:
    history = history_of()
    run(history, 0, Status.MISSED, (40.0, 0.5), epochs=20)
    run(history, 1, Status.CAPPED, (10.0, 0.5), epochs=40)  # Of no known cost.
    row = history.table()._table[1]
    assert np.isnan(row).tolist() == [place > 0.25 for place in np.arange(1, 33) / 32]


def test_what_a_run_reported_after_it_diverged_is_left_out() -> None:
    history = history_of()
    run(history, 0, Status.MISSED, (5.0, 0.5), (7.5, math.nan), (10.0, 0.7))
    (row,) = history.table()._table
    assert row[23] == pytest.approx((y_of(0.5) + y_of(0.7)) / 2)
    assert row[-1] == pytest.approx(y_of(0.7))


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
def test_evidence_is_the_curve_at_the_places_that_count(mode: str) -> None:
    history = history_of(mode)
    run(history, 0, Status.REACHED, (10.0, 0.94))
    run(history, 1, Status.MISSED, (10.0, 0.88), epochs=6)
    run(history, 2, Status.DIVERGED, (5.0, 0.5), epochs=8)
    run(history, 3, Status.OOM, epochs=9)
    run(history, 4, Status.CAPPED, (2.5, 0.8), epochs=7)
    found = history.evidence(graded=True, memory=True)
    start = y_of(0.0)
    shares = [1.0] if mode == "fixed_length" else [2.0 ** (-k / 8) for k in (0, 2, 4, 8, 12)]
    assert found.distances.shape == (5, len(shares))
    # Where the length is free, the axis ends at the time to beat.
    at_s = np.array(shares) * (10.0 if mode == "fixed_length" else 10.0 * (1 + LUCK))
    for row, end in ((0, math.log(3)), (1, -math.log(2))):
        expected = np.interp(at_s, [0.0, 10.0], [start, end])
        assert found.distances[row] == pytest.approx(expected)
    # What diverged or was never seen counts as nothing learned, and that is certain.
    assert (found.distances[2:4] == start).all()
    assert (found.variances[:4] == 0).all()
    last = len(history.table().places) - 1
    places = [last - (0 if mode == "fixed_length" else k) for k in (0, 2, 4, 8, 12)]
    forecast, scale = history.table().extended(places)
    assert found.distances[4, 0] == pytest.approx(forecast[4, 0])
    assert found.variances[4] == pytest.approx(scale[4] ** 2) and scale[4] > 0
    assert found.fits.tolist() == [True, True, True, False, True]
    assert found.costs.tolist() == [10.0, 10.0, 16.0, 18.0, 14.0]


def test_ranks_are_times_of_hits_and_distances_of_misses() -> None:
    history = history_of()
    run(history, 0, Status.REACHED, (math.e, 0.95))
    run(history, 1, Status.MISSED, (10.0, 0.88))
    run(history, 2, Status.MISSED, (10.0, 0.94))  # Above on the way, though it does not count.
    run(history, 3, Status.OOM)
    ranks = history.evidence(graded=True, memory=True).ranks
    assert ranks.tolist() == pytest.approx([99.0, -math.log(2), 0.0, -math.inf])


def test_forecast_of_the_end_is_the_tables_own_and_of_nothing_the_start() -> None:
    history = history_of()
    run(history, 0, Status.MISSED, (10.0, 0.88))
    stopped = run(history, 2, Status.CAPPED, (5.0, 0.8))
    unseen = run(history, 1, Status.OOM)
    values, _ = history.table().extended([31])
    assert history.forecast_end(stopped) == pytest.approx(values[2, 0])
    assert values[2, 0] != history.forecast_end(unseen) == pytest.approx(y_of(0.0))


def test_guess_ranks_lengths_where_only_a_bound_is_known() -> None:
    history = history_of(guess_s=30.0)
    history.begin(Proposal("t0000", {"epochs": 5}))
    trial = history.running["t0000"]
    assert (trial.cost_s, trial.likely_s, history.longest_s()) == (10.0, 30.0, 30.0)
    assert history_of(limit_s=20.0, guess_s=30.0).longest_s() == 20.0


def test_prior_trials_are_numbered_below_zero_and_cost_nothing() -> None:
    history = history_of()
    for end_s in (4.0, 6.0):
        outcome = Outcome(Status.MISSED, end_s, Curve(np.array([end_s]), np.array([0.5])))
        history.add_prior(PriorTrial({"epochs": 3}, outcome, same_times=True))
    run(history, 0, Status.MISSED, (8.0, 0.5))
    numbers = [(trial.number, trial.proposal.trial_id) for trial in history.finished]
    assert numbers == [(-2, "e2"), (-1, "e1"), (0, "t0000")]
    assert history.spent_s == 8.0
    assert not history.was_tried({"epochs": 3}) and history.was_tried({"epochs": 5})


def test_of_very_many_trials_the_best_the_newest_and_some_of_every_quality_stay() -> None:
    limit = 40
    target = SearchTarget(0.9, "fixed_length", math.inf)
    space = SearchSpace.from_tree({"x": {"low": 0.0, "high": 1.0}})
    history = History(Encoder(space), target, lambda _: Cost(3.0), Parts(most_trials=limit))
    drawn, spent_s = np.random.default_rng(0), 0.0
    for number in range(1000):
        # Five are runs of the same configuration, of which four meet the target: more slowly than
        # some fifty configurations of one lucky run each, which would fill the place of the best.
        x = 0.5 if number in range(50, 55) else float(drawn.random())
        is_lucky = x < 0.05
        met = is_lucky or (x == 0.5 and number != 52)
        metric = 0.91 if met else 0.9 - 0.1 * x - 0.01
        history.begin(Proposal(f"t{number:04d}", {"x": x}))
        time_s = 1.8 if is_lucky else 2.0
        spent_s += time_s
        status = Status.REACHED if met else Status.MISSED
        outcome = Outcome(status, time_s, Curve(np.array([time_s]), np.array([metric])))
        before = len(history.finished)
        history.finish(f"t{number:04d}", outcome)
        assert len(history.finished) < 2 * limit
        if len(history.finished) < before:
            kept = [t.proposal.params["x"] for t in history.finished[: -limit // 4]]
            assert sum(x < 0.25 for x in kept) >= limit // 4  # The best.
            assert sum(x > 0.5 for x in kept) >= 2
        newest = [trial.number for trial in history.finished[-limit // 4 :]]
        assert newest == list(range(max(number - limit // 4, -1) + 1, number + 1))
    assert (history.num_finished, history.num_proposed) == (1000, 1000)
    assert history.spent_s == pytest.approx(spent_s)
    assert history.was_tried({"x": 0.5}) and history.times_tried({"x": 0.5}) == 5
    proven = max(history.known(), key=lambda each: len(each.runs))
    assert (len(proven.runs), proven.hits) == (5, 4)
