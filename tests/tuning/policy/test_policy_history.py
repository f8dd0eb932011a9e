"""What a policy has seen, and when a running trial is stopped for it."""

import math
from typing import Any

import numpy as np
import pytest

from tune_speed.core.records import Recommended, Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Cost, Outcome, PriorTrial, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.early_stopping import EarlyStopping
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.history import LUCK, History, Trial
from tune_speed.tuning.policy.settings import Parts

SPACE = SearchSpace.from_tree({"epochs": {"low": 1, "high": 40}})
ALL_STOP = Parts(audit_share=0.0)


def make_history(
    mode: Any = "fixed_length", *, limit_s: float = 100.0, share_first: bool = True
) -> History:
    """Returns one in which an epoch takes two seconds, and ten steps."""

    def cost_of(params: Any) -> Cost:
        return Cost(2.0 * params["epochs"], num_steps=10 * params["epochs"])

    target = SearchTarget(0.9, mode, limit_s)
    return History(Encoder(SPACE), target, cost_of, Parts(share_first=share_first))


def begin(history: History, number: int, epochs: int = 5) -> Trial:
    proposal = Proposal(f"t{number:04d}", {"epochs": epochs})
    history.begin(proposal)
    return history.running[proposal.trial_id]


def end(history: History, number: int, *points: tuple[float, float], status: Status) -> Trial:
    seconds, metric = (np.array(values) for values in zip(*points, strict=True))
    return history.finish(
        f"t{number:04d}", Outcome(status, float(seconds[-1]), Curve(seconds, metric))
    )


def report(trial: Trial, train_s: float, metric: float = 0.5, *, step: int = 0) -> Trial:
    trial.clock.append(train_s)
    trial.metric.append(metric)
    trial.step = step
    return trial


def test_proposals_are_counted_and_never_made_again() -> None:
    history = make_history()
    begin(history, 3, epochs=7)
    history.count(Proposal("t0001", {"epochs": 9}))
    assert history.num_proposed == 4
    assert [history.was_tried({"epochs": n}) for n in (7, 8, 9)] == [True, False, True]


def test_ended_trial_leads_by_its_time_and_is_listed_by_its_number() -> None:
    history = make_history()
    for number in range(3):
        begin(history, number, epochs=10)
    end(history, 2, (20.0, 0.95), status=Status.REACHED)
    end(history, 0, (15.0, 0.92), status=Status.REACHED)
    assert history.leader is not None and history.leader.trial_id == "t0000"
    assert (history.to_beat_s(), history.spent_s) == (15.0, 35.0)
    end(history, 1, (3.0, 0.1), status=Status.FAILED)
    assert [trial.number for trial in history.finished] == [0, 2]
    assert not history.running


def test_before_a_leader_the_longest_run_within_the_limit_is_to_be_beaten() -> None:
    history = make_history(limit_s=50.0)
    assert history.to_beat_s() == 50.0
    begin(history, 0, epochs=5)
    assert history.to_beat_s() == 10.0
    begin(history, 1, epochs=20)
    end(history, 1, (40.0, 0.5), status=Status.MISSED)
    assert history.to_beat_s() == 40.0
    begin(history, 2, epochs=40)
    assert history.to_beat_s() == 50.0
    assert math.isnan(make_history(limit_s=math.inf).to_beat_s())


def test_time_to_beat_of_a_fixed_length_is_the_expected_one_of_what_is_recommended() -> None:
    history = make_history()
    begin(history, 0)
    end(history, 0, (10.0, 0.95), status=Status.REACHED)
    assert history.to_beat_s() == 10.0  # Nothing is recommended yet.
    best = Recommended(trial_id="t0000", runs=1, hits=1, expected_s=14.0)
    history.favourites = (best, best.model_copy(update={"expected_s": 20.0}))
    assert history.to_beat_s() == 14.0


def test_time_to_beat_of_a_free_length_is_what_a_configuration_took_for_each_hit_and_a_doubt() -> (
    None
):
    history = make_history("anytime")
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
    history = make_history("anytime")
    widths = []
    for number in range(4):
        begin(history, number)
        end(history, number, (10.0, 0.95), status=Status.REACHED)
        (known,) = history.known()
        assert (len(known.runs), known.hits, known.expected_s) == (number + 1, number + 1, 10.0)
        assert known.hopeful_s < 10.0 < known.cautious_s
        widths.append(known.cautious_s - known.hopeful_s)
    assert widths == sorted(set(widths), reverse=True)


@pytest.mark.parametrize(("mode", "counts_stops"), [("fixed_length", False), ("anytime", True)])
def test_runs_of_a_configuration_are_those_to_their_ends(mode: str, counts_stops: bool) -> None:
    """One that diverged or ran out of memory is a miss; one that failed says nothing of it.

    Where the length is free, one that was run again and stopped counts: it took too long.
    """
    history = make_history(mode)
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
        for key, runs in history.configurations().items()
    }
    # What was stopped at its first run was not run for its time.
    assert found == {5: [0, 1, 2, 3] if counts_stops else [0, 1, 3], 6: [6]}


@pytest.mark.parametrize("order", [(3, 5), (5, 3)])
def test_of_trials_of_a_configuration_all_but_the_first_are_again(order: tuple[int, int]) -> None:
    """The first is that of the smallest number, in whatever order a ledger has them."""
    history = make_history()
    for number in order:
        history.count(Proposal(f"t{number:04d}", {"epochs": 5}))
    begin(history, 4, epochs=6)
    assert [begin(history, n).again for n in order] == [n == 5 for n in order]
    assert not history.running["t0004"].again


def test_clock_is_projected_by_steps_once_there_are_some() -> None:
    trial = begin(make_history(), 0, epochs=5)
    assert (trial.cost_s, trial.likely_s, trial.projected_s()) == (10.0, 10.0, 10.0)
    report(trial, 3.0, step=10)
    assert trial.projected_s() == 15.0  # 3 s for 10 of 50 steps.


def test_length_of_a_run_is_what_it_took_or_else_what_was_planned() -> None:
    history = make_history()
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
    history = make_history(mode)
    curve = Curve(np.array([2.0]), np.array([0.95]))
    for status in (Status.REACHED, Status.OOM):
        outcome = Outcome(status, 2.0, curve)
        history.add_prior(PriorTrial({"epochs": 3}, outcome, same_times))
    known = [trial.outcome.status for trial in history.finished if trial.outcome is not None]
    every = [Status.OOM, Status.REACHED]
    expected = every if same_times else [Status.REACHED] * (mode == "fixed_length")
    assert known == expected
    assert [trial.number for trial in history.finished] == list(range(-len(known), 0))
    assert (history.leader, history.spent_s, history.num_proposed) == (None, 0.0, 0)


def test_evidence_ranks_hits_by_time_then_misses_by_distance_then_what_did_not_fit() -> None:
    history = make_history()
    for number in range(5):
        begin(history, number)
    end(history, 0, (10.0, 0.80), status=Status.MISSED)
    end(history, 1, (10.0, 0.95), status=Status.REACHED)
    end(history, 2, (10.0, 0.88), status=Status.MISSED)
    end(history, 3, (8.0, 0.91), status=Status.REACHED)
    history.finish("t0004", Outcome(Status.OOM, 0.0))
    found = history.evidence(graded=True, memory=True)
    assert np.argsort(-found.ranks).tolist() == [3, 1, 2, 0, 4]
    assert found.fits.tolist() == [True, True, True, True, False]
    assert history.evidence(graded=True, memory=False).fits.all()
    assert found.units.shape == (5, 1) and found.costs.tolist() == [10.0, 10.0, 10.0, 8.0, 10.0]
    # A unit of two points: ln 2 at 0.88, as in `test_curve_table`.
    assert found.distances[2, 0] == pytest.approx(-math.log(2))
    alike = history.evidence(graded=False, memory=True)
    assert alike.distances[0, 0] == alike.distances[2, 0] == history.start_y
    assert alike.distances[1, 0] == found.distances[1, 0] > 0


def test_curves_are_compared_by_clock_once_a_run_of_free_length_met_the_target() -> None:
    for share_first, before in ((True, True), (False, False)):
        history = make_history("anytime", share_first=share_first)
        assert not history.knows_length and history.by_share is before
        begin(history, 0)
        end(history, 0, (4.0, 0.95), status=Status.REACHED)
        assert not history.by_share
        assert history.fractions == (1.0, 2**-0.25, 2**-0.5, 0.5, 2**-1.5)
    fixed = make_history()
    begin(fixed, 0)
    end(fixed, 0, (4.0, 0.95), status=Status.REACHED)
    assert fixed.by_share and fixed.fractions == (1.0,)


def led(mode: Any = "fixed_length", *, beat_s: float = 10.0) -> History:
    """Returns one with a single hit, whose time where the length is free may be longer."""
    history = make_history(mode)
    begin(history, 0)
    leader_s = beat_s if mode == "fixed_length" else beat_s / (1 + LUCK)
    end(history, 0, (leader_s, 0.95), status=Status.REACHED)
    assert history.to_beat_s() == beat_s
    return history


def test_run_whose_end_is_a_tenth_past_the_time_to_beat_is_stopped() -> None:
    # 0.9 of 12 s are past the 10 s to beat, 0.9 of 10 s are not.
    for epochs, is_stopped in ((5, False), (6, True)):
        history = led()
        rules = EarlyStopping(history, ALL_STOP, seed=0)
        trial = report(begin(history, 1, epochs), 2.0)
        reason = rules.reason(trial)
        assert (reason is not None) == is_stopped
    assert str(reason) == (
        "stopped at 2.0 s: it would not end before 10.8 s, and t0000, which is recommended, takes"
        " 10.0 s with restarts"
    )
    assert EarlyStopping(history, Parts(audit_share=0.0, cap=False), seed=0).reason(trial) is None


def test_slow_clock_is_forgiven_where_the_isolated_time_is_short_enough() -> None:
    history = led()
    rules = EarlyStopping(history, ALL_STOP, seed=0)
    trial = report(begin(history, 1, epochs=5), 8.0, step=10)  # On the way to 40 s.
    assert trial.projected_s() == 40.0 and rules.reason(trial) is None
    assert str(rules.reason(report(trial, 10.5, step=20))) == (
        "stopped at 10.5 s: t0000, which is recommended, takes 10.0 s with restarts"
    )


def test_free_length_is_stopped_by_the_clock_alone() -> None:
    history = led("anytime")
    rules = EarlyStopping(history, ALL_STOP, seed=0)
    trial = report(begin(history, 1, epochs=40), 2.0, 0.5)
    assert rules.reason(trial) is None
    assert "t0000, which is recommended, takes 10.0 s" in str(rules.reason(report(trial, 10.1)))


@pytest.mark.parametrize("rung_s", [10 / 81, 10 / 27, 10 / 9, 10 / 3])
def test_rungs_lie_at_thirds_of_the_time_to_beat(rung_s: float) -> None:
    history = led("anytime")
    for number in range(1, 5):
        begin(history, number, epochs=10 + number)
        end(history, number, (0.1, 0.8), (10.0, 0.89), status=Status.MISSED)
    rules = EarlyStopping(history, Parts(audit_share=0.0), seed=0)
    trial = report(begin(history, 9, epochs=19), rung_s * 0.5, 0.1)
    rules.reason(trial)
    passed = trial.rung
    reason = rules.reason(report(trial, rung_s * 1.01, 0.1))
    assert trial.rung == passed + 1
    # The leader itself began from nothing, and is behind at the first rung.
    ahead = 4 if rung_s < 0.2 else 5
    assert str(reason) == (
        f"stopped at {rung_s * 1.01:.1f} s: {ahead} of 5 trials promised more by {rung_s:.1f} s"
    )
    # It is judged once at each rung; and an audited one goes on.
    assert rules.reason(report(trial, rung_s * 1.02, 0.1)) is None
    audited = EarlyStopping(history, Parts(audit_share=1.0), seed=0)
    assert audited.reason(report(begin(history, 10, epochs=20), rung_s * 1.01, 0.1)) is None
    without = EarlyStopping(history, Parts(audit_share=0.0, rungs=False), seed=0)
    assert without.reason(report(begin(history, 11, epochs=21), rung_s * 1.01, 0.1)) is None


def test_best_quarter_passes_a_rung() -> None:
    history = led("anytime")
    for number in range(1, 5):
        begin(history, number, epochs=10 + number)
        end(history, number, (0.1, 0.3), (10.0, 0.5), status=Status.MISSED)
    rules = EarlyStopping(history, Parts(audit_share=0.0), seed=0)
    assert rules.reason(report(begin(history, 9, epochs=19), 3.4, 0.89)) is None


@pytest.mark.parametrize(("num_ahead", "is_stopped"), [(0, False), (1, True)])
def test_of_four_runs_only_the_first_passes_a_rung(num_ahead: int, is_stopped: bool) -> None:
    history = led("anytime")
    for number in range(1, 3):
        begin(history, number, epochs=10 + number)
        metric = 0.8 if number <= num_ahead else 0.3
        end(history, number, (0.1, metric), (10.0, metric), status=Status.MISSED)
    rules = EarlyStopping(history, Parts(audit_share=0.0), seed=0)
    trial = report(begin(history, 9, epochs=19), 0.05, 0.6)
    reason = rules.reason(report(trial, 0.13, 0.6))
    assert (reason is not None) == is_stopped
    assert reason is None or reason.figures["ahead"] == num_ahead


def test_metric_that_is_no_number_stops_nothing_before_the_clock_does() -> None:
    history = led("anytime")
    for number in range(1, 5):
        begin(history, number, epochs=10 + number)
        end(history, number, (0.1, 0.8), (10.0, 0.89), status=Status.MISSED)
    rules = EarlyStopping(history, ALL_STOP, seed=0)
    trial = report(begin(history, 9, epochs=19), 3.4, math.nan)
    assert rules.reason(trial) is None
    assert rules.reason(report(trial, 10.1, math.nan)) is not None
