import math
from typing import Any

import numpy as np
import pytest

from tune_speed.core.records import Recommended, Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import (
    Cost,
    Outcome,
    Parts,
    PriorTrial,
    Problem,
    Proposal,
    SearchTarget,
)
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.history import History
from tune_speed.tuning.policy.trials import LUCK, Trial

SPACE = SearchSpace.from_tree({"epochs": {"low": 1, "high": 40}})


def history_of(mode: Any = "fixed_length", *, limit_s: float = 100.0, **costs: Any) -> History:
    """Returns one in which an epoch takes two seconds, and ten steps; of 40 nobody knows."""

    def cost_of(params: Any) -> Cost | None:
        epochs = params["epochs"]
        return Cost(2.0 * epochs, num_steps=10 * epochs, **costs) if epochs < 40 else None

    target = SearchTarget(0.9, mode, limit_s)
    return History(Problem(SPACE, target, cost_of, seed=0), Parts())


def begin(history: History, number: int, epochs: int = 5) -> Trial:
    proposal = Proposal(f"t{number:04d}", {"epochs": epochs})
    history.begin(proposal)
    return history.running[proposal.trial_id]


def end(history: History, number: int, *points: tuple[float, float], status: Status) -> Trial:
    seconds, metric = (np.array([point[i] for point in points]) for i in range(2))
    end_s = points[-1][0] if points else 0.0
    return history.finish(f"t{number:04d}", Outcome(status, end_s, Curve(seconds, metric)))


def run(
    history: History, number: int, status: Status, *points: tuple[float, float], epochs: int = 5
) -> Trial:
    begin(history, number, epochs)
    return end(history, number, *points, status=status)


def test_proposals_are_counted_and_never_made_again() -> None:
    history = history_of()
    begin(history, 3, epochs=7)
    history.count(Proposal("t0001", {"epochs": 9}))
    assert history.num_proposed == 4
    assert [history.was_tried({"epochs": n}) for n in (7, 8, 9)] == [True, False, True]


def test_ended_trial_leads_by_its_time_and_is_listed_by_its_number() -> None:
    history = history_of()
    for number in range(3):
        begin(history, number, epochs=10)
    end(history, 2, (20.0, 0.95), status=Status.REACHED)
    end(history, 0, (15.0, 0.92), status=Status.REACHED)
    assert history.leader is not None and history.leader.trial_id == "t0000"
    assert (history.to_beat_s(), history.ended.spent_s) == (15.0, 35.0)
    end(history, 1, (3.0, 0.1), status=Status.FAILED)
    assert [trial.number for trial in history.ended.trials] == [0, 2]
    assert not history.running


def test_before_a_leader_the_longest_run_within_the_limit_is_to_be_beaten() -> None:
    history = history_of(limit_s=50.0)
    assert history.to_beat_s() == 50.0
    begin(history, 0, epochs=5)
    assert history.to_beat_s() == 10.0
    begin(history, 1, epochs=20)
    end(history, 1, (40.0, 0.5), status=Status.MISSED)
    assert history.to_beat_s() == 40.0
    begin(history, 2, epochs=39)
    assert history.to_beat_s() == 50.0
    assert math.isnan(history_of(limit_s=math.inf).to_beat_s())


def test_time_to_beat_of_a_fixed_length_is_the_expected_one_of_what_is_recommended() -> None:
    history = history_of()
    begin(history, 0)
    end(history, 0, (10.0, 0.95), status=Status.REACHED)
    assert history.to_beat_s() == 10.0  # Nothing is recommended yet.
    best = Recommended(trial_id="t0000", runs=1, hits=1, expected_s=14.0)
    history.favourites = (best, best.model_copy(update={"expected_s": 20.0}))
    assert history.to_beat_s() == 14.0


def test_time_to_beat_of_a_free_length_is_what_a_configuration_took_for_each_hit_and_a_doubt() -> (
    None
):
    history = history_of("anytime")
    ends = [
        (5, 10.0, Status.REACHED, 10.0 * (1 + LUCK)),
        (6, 8.0, Status.REACHED, 8.0 * (1 + LUCK)),
        (6, 30.0, Status.MISSED, 10.0 * (1 + LUCK)),  # 38 s for one hit: the first is better.
        (7, 2.0, Status.MISSED, 10.0 * (1 + LUCK)),  # Without a hit, no time says anything.
        (5, 10.0, Status.REACHED, 10.0 * (1 + LUCK / 2)),
        (5, 4.0, Status.CAPPED, 12.0 * (1 + LUCK / 3)),
    ]
    for number, (epochs, end_s, status, expected_s) in enumerate(ends):
        begin(history, number, epochs=epochs)
        end(history, number, (end_s, 0.9), status=status)
        assert history.to_beat_s() == pytest.approx(expected_s)


def test_doubt_of_a_configuration_shrinks_with_its_runs() -> None:
    history = history_of("anytime")
    widths = []
    for number in range(4):
        begin(history, number)
        end(history, number, (10.0, 0.95), status=Status.REACHED)
        (known,) = history.ended.known()
        assert (len(known.runs), known.hits, known.expected_s) == (number + 1, number + 1, 10.0)
        assert known.hopeful_s < 10.0 < known.cautious_s
        widths.append(known.cautious_s - known.hopeful_s)
    assert widths == sorted(set(widths), reverse=True)


@pytest.mark.parametrize(("mode", "counts_stops"), [("fixed_length", False), ("anytime", True)])
def test_runs_of_a_configuration_are_those_to_their_ends(mode: str, counts_stops: bool) -> None:
    """One that diverged or ran out of memory is a miss; one that failed says nothing of it.

    Where the length is free, one that was run again and stopped counts: it took too long.
    """
    history = history_of(mode)
    statuses = [Status.REACHED, Status.MISSED, Status.CAPPED, Status.OOM, Status.FAILED]
    for number, status in enumerate(statuses):
        begin(history, number, epochs=5)
        end(history, number, (3.0, 0.8), status=status)
    for number, status in ((5, Status.CAPPED), (6, Status.MISSED)):
        begin(history, number, epochs=6)
        end(history, number, (3.0, 0.8), status=status)
    begin(history, 7, epochs=6)
    outcome = Outcome(Status.REACHED, 2.0, Curve(np.array([2.0]), np.array([0.95])))
    history.add_prior(PriorTrial({"epochs": 5}, outcome, same_times=True))
    found = {
        dict(key)["epochs"]: [trial.number for trial in runs]
        for key, runs in history.ended.configurations().items()
    }
    # What was stopped at its first run was not run for its time.
    assert found == {5: [0, 1, 2, 3] if counts_stops else [0, 1, 3], 6: [6]}


@pytest.mark.parametrize("order", [(3, 5), (5, 3)])
def test_of_trials_of_a_configuration_all_but_the_first_are_again(order: tuple[int, int]) -> None:
    """The first is that of the smallest number, in whatever order a ledger has them."""
    history = history_of()
    for number in order:
        history.count(Proposal(f"t{number:04d}", {"epochs": 5}))
    begin(history, 4, epochs=6)
    assert [begin(history, n).again for n in order] == [n == 5 for n in order]
    assert not history.running["t0004"].again


def test_clock_is_projected_by_steps_once_there_are_some() -> None:
    trial = begin(history_of(), 0, epochs=5)
    assert (trial.cost_s, trial.likely_s, trial.projected_s()) == (10.0, 10.0, 10.0)
    trial.clock, trial.step = [3.0], 10
    assert trial.projected_s() == 15.0  # 3 s for 10 of 50 steps.


def test_length_of_a_run_is_what_it_took_or_else_what_was_planned() -> None:
    history = history_of()
    for number in range(3):
        begin(history, number)
    assert end(history, 0, (4.0, 0.1), (12.0, 0.5), status=Status.MISSED).likely_s == 12.0
    assert end(history, 1, (4.0, 0.1), status=Status.CAPPED).likely_s == 10.0
    outcome = Outcome(Status.CAPPED, 4.0, planned_s=16.0)
    assert history.finish("t0002", outcome).likely_s == 16.0


@pytest.mark.parametrize("same_times", [True, False])
@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
def test_trials_of_other_studies_inform_only_where_they_compare(
    mode: str, same_times: bool
) -> None:
    history = history_of(mode)
    curve = Curve(np.array([2.0]), np.array([0.95]))
    for status in (Status.REACHED, Status.OOM):
        outcome = Outcome(status, 2.0, curve)
        history.add_prior(PriorTrial({"epochs": 3}, outcome, same_times))
    known = [trial.outcome.status for trial in history.ended.trials if trial.outcome is not None]
    every = [Status.OOM, Status.REACHED]
    expected = every if same_times else [Status.REACHED] * (mode == "fixed_length")
    assert known == expected
    assert [trial.number for trial in history.ended.trials] == list(range(-len(known), 0))
    assert (history.leader, history.ended.spent_s, history.num_proposed) == (None, 0.0, 0)


def test_misses_are_graded_and_what_did_not_fit_is_known() -> None:
    history = history_of()
    run(history, 0, Status.MISSED, (10.0, 0.80))
    run(history, 1, Status.REACHED, (10.0, 0.95))
    run(history, 2, Status.OOM)
    found = history.evidence()
    assert found.fits.tolist() == [True, True, False] and found.units.shape == (3, 1)
    assert history.start_y < found.distances[0, 0] < 0 < found.distances[1, 0]


def test_curves_are_compared_by_clock_once_a_run_of_free_length_met_the_target() -> None:
    history = history_of("anytime")
    assert not history.knows_length and history.by_share
    begin(history, 0)
    end(history, 0, (4.0, 0.95), status=Status.REACHED)
    assert not history.by_share
    assert history.fractions == (1.0, 2**-0.25, 2**-0.5, 0.5, 2**-1.5)
    fixed = history_of()
    begin(fixed, 0)
    end(fixed, 0, (4.0, 0.95), status=Status.REACHED)
    assert fixed.by_share and fixed.fractions == (1.0,)


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
    found = history.evidence()
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
    ranks = history.evidence().ranks
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
    numbers = [(trial.number, trial.proposal.trial_id) for trial in history.ended.trials]
    assert numbers == [(-2, "e2"), (-1, "e1"), (0, "t0000")]
    assert history.ended.spent_s == 8.0
    assert not history.was_tried({"epochs": 3}) and history.was_tried({"epochs": 5})


def test_of_very_many_trials_the_best_the_newest_and_some_of_every_quality_stay() -> None:
    limit = 40
    target = SearchTarget(0.9, "fixed_length", math.inf)
    space = SearchSpace.from_tree({"x": {"low": 0.0, "high": 1.0}})
    problem = Problem(space, target, lambda _: Cost(3.0), seed=0)
    history = History(problem, Parts(most_trials=limit))
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
        before = len(history.ended.trials)
        history.finish(f"t{number:04d}", outcome)
        assert len(history.ended.trials) < 2 * limit
        if len(history.ended.trials) < before:
            kept = [t.proposal.params["x"] for t in history.ended.trials[: -limit // 4]]
            assert sum(x < 0.25 for x in kept) >= limit // 4  # The best.
            assert sum(x > 0.5 for x in kept) >= 2
        newest = [trial.number for trial in history.ended.trials[-limit // 4 :]]
        assert newest == list(range(max(number - limit // 4, -1) + 1, number + 1))
    assert (history.ended.num, history.num_proposed) == (1000, 1000)
    assert history.ended.spent_s == pytest.approx(spent_s)
    assert history.was_tried({"x": 0.5}) and history.times_tried({"x": 0.5}) == 5
    proven = max(history.ended.known(), key=lambda each: len(each.runs))
    assert (len(proven.runs), proven.hits) == (5, 4)
