import math
from typing import Any

import numpy as np
import pytest

from tune_speed.core.records import Recommended, Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Cost, Outcome, Parts, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.early_stopping import EarlyStopping
from tune_speed.tuning.policy.history import History
from tune_speed.tuning.policy.trials import LUCK, Trial

SPACE = SearchSpace.from_tree({"epochs": {"low": 1, "high": 500}})
# Of a target of 0.9: two points are one unit.
START_Y = -math.log(46)


def history_of(mode: Any, *, cost_s: float | None = None, limit_s: float = 100.0) -> History:
    def cost_of(params: Any) -> Cost:
        return Cost(cost_s or 2.0 * params["epochs"], num_steps=100)

    target = SearchTarget(0.9, mode, limit_s)
    return History(Problem(SPACE, target, cost_of, seed=0), Parts())


def begin(history: History, number: int, *, epochs: int | None = None) -> Trial:
    proposal = Proposal(f"t{number:04d}", {"epochs": epochs or number + 1})
    history.begin(proposal)
    return history.running[proposal.trial_id]


def end(history: History, trial: Trial, status: Status, *points: tuple[float, float]) -> None:
    seconds, metric = (np.array(values) for values in zip(*points, strict=True))
    outcome = Outcome(status, float(seconds[-1]), Curve(seconds, metric))
    history.finish(trial.proposal.trial_id, outcome)


def report(trial: Trial, *points: tuple[float, float]) -> Trial:
    for train_s, metric in points:
        trial.clock.append(train_s)
        trial.metric.append(metric)
    return trial


def rules_of(history: History, **parts: Any) -> EarlyStopping:
    return EarlyStopping(history, Parts(**{"audit_share": 0.0, **parts}), seed=4)


def test_trial_is_audited_by_a_draw_of_its_own() -> None:
    history = history_of("anytime")
    for number in range(3):
        trial = begin(history, number)
        draw = np.random.default_rng([4, number, 1]).random()
        assert not rules_of(history, audit_share=draw)._is_audited(trial)
        assert rules_of(history, audit_share=np.nextafter(draw, 1))._is_audited(trial)


def test_distance_lies_on_the_line_from_the_start_through_the_reports() -> None:
    history = history_of("anytime")
    rules, trial = rules_of(history), begin(history, 0)
    report(trial, (4.0, 0.88), (8.0, 0.94), (16.0, math.nan))
    first, second = -math.log(2), math.log(3)
    assert history.start_y == pytest.approx(START_Y)
    for train_s, here, before in (
        (4.0, first, (first + START_Y) / 2),
        (2.0, (first + START_Y) / 2, START_Y + (first - START_Y) / 4),
        (6.0, (first + second) / 2, START_Y + (first - START_Y) * 3 / 4),
        # What is no number counts as nothing learned.
        (16.0, START_Y, second),
    ):
        assert rules._distances(trial, train_s) == pytest.approx((here, before))


def test_others_count_from_the_moment_when_they_come_to_a_place() -> None:
    history = history_of("anytime", cost_s=80.0)
    rules = rules_of(history)
    mine, there, short, silent = (begin(history, number) for number in range(4))
    report(mine, (30.0, 0.5))
    report(there, (10.0, 0.88), (20.0, 0.92))
    report(short, (19.9, 0.5))
    assert silent.clock == []
    # Before a leader at equal shares of schedules, a quarter of 80 s each.
    (found,) = rules._others_at(mine, 0.25)
    assert found == pytest.approx((math.log(2), -math.log(2)))
    # Of its own pace: 16 of 100 steps in 19.9 s are a fifth of a run of 124 s.
    short.step = 16
    assert len(rules._others_at(mine, 0.25)) == 1
    short.step = 25
    assert len(rules._others_at(mine, 0.25)) == 2


def led(beat_s: float = 81.0) -> History:
    """Returns one with a single hit, whose time may be longer than its only run's."""
    history = history_of("anytime")
    end(history, begin(history, 0), Status.REACHED, (beat_s / (1 + LUCK), 0.95))
    assert history.to_beat_s() == beat_s
    return history


def test_rung_is_passed_at_the_moment_itself_and_several_at_once_count_as_the_last() -> None:
    history = led()
    rules = rules_of(history)
    for clock_s, rung in ((0.99, 0), (1.0, 1), (2.99, 1), (3.0, 2), (27.0, 4), (80.9, 4)):
        trial = report(begin(history, 1), (clock_s, 0.5))
        rules.reason(trial)
        assert trial.rung == rung
        del history.running["t0001"]


@pytest.mark.parametrize(("num_others", "is_stopped"), [(0, False), (1, True)])
def test_rung_stops_only_where_two_others_were_seen(num_others: int, is_stopped: bool) -> None:
    history = led()  # The leader is one of them: by 27 s it was a third of its way up.
    for number in range(1, 1 + num_others):
        end(history, begin(history, number), Status.MISSED, (20.0, 0.85), (81.0, 0.85))
    trial = report(begin(history, 9), (27.0, 0.02))
    reason = rules_of(history).reason(trial)
    assert (reason is not None) == is_stopped
    assert reason is None or reason.figures.items() >= {"ahead": 2, "num": 2, "by_s": 27.0}.items()


@pytest.mark.parametrize(("keeps", "is_stopped"), [(0.5, True), (0.501, False)])
def test_rung_keeps_the_share_that_it_is_told(keeps: float, is_stopped: bool) -> None:
    history = led()
    for number, metric in ((1, 0.85), (2, 0.02)):
        end(history, begin(history, number), Status.MISSED, (20.0, metric), (81.0, metric))
    # Two of three promise more: itself counted, half of four.
    trial = report(begin(history, 9), (27.0, 0.03))
    reason = rules_of(history, rung_keeps=keeps).reason(trial)
    assert (reason is not None) == is_stopped


def test_run_that_has_come_to_the_end_of_the_axis_is_not_judged() -> None:
    for train_s, is_stopped in ((80.9, True), (81.0, False)):
        history = led()
        for number in range(1, 4):
            end(history, begin(history, number), Status.MISSED, (20.0, 0.85), (81.0, 0.85))
        trial = report(begin(history, 20), (train_s, 0.02))
        assert (rules_of(history).reason(trial) is not None) == is_stopped


def test_length_must_be_past_the_time_to_beat_and_the_margin_is_a_tenth() -> None:
    history = history_of("fixed_length", cost_s=20.0)
    end(history, begin(history, 0), Status.REACHED, (18.0, 0.95))
    trial = report(begin(history, 1), (1.0, 0.5))
    # 9/10 of 20 s are the time to beat itself, which could still be equalled.
    assert rules_of(history).reason(trial) is None
    assert "it would not end before 18.2 s" in str(
        rules_of(history, cost_margin=0.91).reason(trial)
    )


def test_where_no_end_is_known_only_the_clock_counts() -> None:
    target = SearchTarget(0.9, "fixed_length", math.inf)
    history = History(Problem(SPACE, target, lambda params: None, seed=0), Parts())
    end(history, begin(history, 0), Status.REACHED, (18.0, 0.95))
    trial = report(begin(history, 1), (17.9, 0.0))
    assert rules_of(history).reason(trial) is None
    assert str(rules_of(history).reason(report(trial, (18.1, 0.0)))) == (
        "stopped at 18.1 s: t0000, which is recommended, takes 18.0 s with restarts"
    )


def recommend(history: History, trial_id: str, expected_s: float) -> None:
    best = Recommended(trial_id=trial_id, runs=4, hits=4, expected_s=expected_s)
    history.favourites = (best, best.model_copy(update={"trial_id": "t0099", "expected_s": 99.0}))


def test_trial_is_stopped_past_what_the_recommended_one_takes_not_past_the_leader() -> None:
    history = history_of("fixed_length", cost_s=14.0)
    end(history, begin(history, 0), Status.REACHED, (13.0, 0.95))
    end(history, begin(history, 1), Status.REACHED, (10.0, 0.91))
    recommend(history, "t0000", expected_s=14.0)
    trial, rules = begin(history, 2), rules_of(history)
    assert rules.reason(report(trial, (11.0, 0.5), (13.9, 0.5))) is None
    assert str(rules.reason(report(trial, (14.1, 0.5)))) == (
        "stopped at 14.1 s: t0000, which is recommended, takes 14.0 s with restarts"
    )


@pytest.mark.parametrize(("cost_s", "is_stopped"), [(27.7, False), (27.9, True)])
def test_trial_runs_on_whose_end_lies_between_the_leaders_time_and_the_expected_one(
    cost_s: float, is_stopped: bool
) -> None:
    history = history_of("fixed_length", cost_s=cost_s)
    end(history, begin(history, 0), Status.REACHED, (10.0, 0.91))
    recommend(history, "t0000", expected_s=25.0)
    reason = rules_of(history).reason(report(begin(history, 2), (1.0, 0.5)))
    assert (reason is not None) == is_stopped
    assert reason is None or str(reason) == (
        "stopped at 1.0 s: it would not end before 25.1 s, and t0000, which is recommended,"
        " takes 25.0 s with restarts"
    )


def test_run_of_free_length_that_is_made_again_goes_on_to_twice_the_time_to_beat() -> None:
    """It tells how long runs take: stopped in time, none of them ever took long."""
    history = led()
    rules = rules_of(history, audit_share=1.0)
    again, other = begin(history, 1, epochs=1), begin(history, 2)
    assert (again.again, other.again) == (True, False)
    for trial, stops_at_s in ((again, 162.0), (other, 81.0)):
        assert rules.reason(report(trial, (stops_at_s - 0.1, 0.5))) is None
        assert str(rules.reason(report(trial, (stops_at_s + 0.1, 0.5)))) == (
            f"stopped at {stops_at_s + 0.1} s: t0000, which is recommended, takes 81.0 s with"
            " restarts"
        )


def test_what_is_run_again_is_not_judged_by_what_it_promises() -> None:
    history = led()
    for number in range(1, 5):
        end(history, begin(history, number), Status.MISSED, (20.0, 0.85), (81.0, 0.85))
    again, other = begin(history, 8, epochs=1), begin(history, 9)
    for trial, is_stopped in ((again, False), (other, True)):
        reason = rules_of(history).reason(report(trial, (27.0, 0.02)))
        assert (reason is not None) == is_stopped


def test_run_of_fixed_length_that_is_made_again_ends_where_any_does() -> None:
    history = history_of("fixed_length", cost_s=10.0)
    end(history, begin(history, 0), Status.REACHED, (10.0, 0.95))
    again = report(begin(history, 1, epochs=1), (10.1, 0.5))
    assert again.again and rules_of(history).reason(again) is not None


def test_slow_clock_is_forgiven_where_the_isolated_time_is_short_enough() -> None:
    history = history_of("fixed_length")
    end(history, begin(history, 0, epochs=6), Status.REACHED, (10.0, 0.95))
    trial = report(begin(history, 1, epochs=5), (8.0, 0.5))
    trial.step = 20  # Of 100: on the way to 40 s.
    assert trial.projected_s() == 40.0 and rules_of(history).reason(trial) is None
    assert rules_of(history).reason(report(trial, (10.5, 0.5))) is not None


def behind(**parts: Any) -> tuple[EarlyStopping, Trial]:
    """Returns a trial that four others are ahead of, at the second rung of 81 s."""
    history = led()
    for number in range(1, 5):
        end(history, begin(history, number), Status.MISSED, (0.1, 0.8), (81.0, 0.89))
    return rules_of(history, **parts), report(begin(history, 9), (0.5, 0.1), (3.1, 0.1))


def test_trial_is_judged_once_at_each_rung_unless_it_is_audited() -> None:
    rules, trial = behind()
    figures = {"at_s": 3.1, "ahead": 5, "num": 5, "by_s": pytest.approx(3.0)}
    reason = rules.reason(trial)
    assert reason is not None and (reason.kind, reason.figures) == ("below_rung", figures)
    assert rules.reason(report(trial, (3.2, 0.1))) is None
    rules, trial = behind(audit_share=1.0)
    assert rules.reason(trial) is None


@pytest.mark.parametrize(("num_ahead", "is_stopped"), [(0, False), (1, True)])
def test_of_four_runs_only_the_first_passes_a_rung(num_ahead: int, is_stopped: bool) -> None:
    history = led()
    for number in range(1, 3):
        metric = 0.8 if number <= num_ahead else 0.3
        end(history, begin(history, number), Status.MISSED, (0.8, metric), (81.0, metric))
    reason = rules_of(history).reason(report(begin(history, 9), (0.4, 0.6), (1.05, 0.6)))
    assert (reason is not None) == is_stopped


def test_metric_that_is_no_number_stops_nothing_before_the_clock_does() -> None:
    rules, trial = behind()
    assert rules.reason(report(trial, (9.1, math.nan))) is None
    assert rules.reason(report(trial, (81.1, math.nan))) is not None
