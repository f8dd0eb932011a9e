import numpy as np
import pytest
from helpers.tuning.repeats import (
    ALMOST,
    LUCKY,
    LUCKY_ID,
    RIVALS,
    SEEN,
    SHORT,
    SURE,
    SURE_ID,
    TRIED,
    Log,
    ask,
    ended,
    log_of,
    make_policy,
    restored,
)

from tune_speed.core.records import Recommended, Status
from tune_speed.tuning.policy.base import AcquisitionSettings, Leader, Outcome, Proposal
from tune_speed.tuning.policy.curve import NO_CURVE, Curve
from tune_speed.tuning.policy.time_to_target import TimeToTarget

MODES = ["fixed_length", "anytime"]


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_recommended_before_a_hit(mode: str) -> None:
    policy = make_policy(mode)
    assert policy.favourites == ()
    policy.restore(finished=log_of([*SHORT, *ALMOST]), unfinished=[])
    assert policy.favourites == () and policy.leader is None


@pytest.mark.parametrize("mode", MODES)
def test_first_hit_is_recommended_before_there_is_a_model(mode: str) -> None:
    policy = make_policy(mode)
    policy.restore(finished=log_of([SURE[0]]), unfinished=[])
    (best,) = policy.favourites
    assert (best.trial_id, best.runs, best.hits) == ("t0000", 1, 1)
    assert best.expected_s == 12.0


def test_four_hits_of_four_are_recommended_before_a_faster_single_one() -> None:
    policy = restored()
    best, lucky = policy.favourites
    assert policy.leader == Leader(LUCKY_ID, 10.0)
    assert (lucky.trial_id, lucky.runs, lucky.hits) == (LUCKY_ID, 1, 1)
    assert lucky.chance is not None and lucky.chance.value < 0.6
    assert (best.trial_id, best.runs, best.hits) == (SURE_ID, 4, 4)
    # The time of a run, and little more for the misses that may come.
    assert 12.0 < best.expected_s < 15.0
    assert best.chance is not None and best.chance.low is not None
    assert best.chance.low < best.chance.value <= 1.0
    assert best.expected_s == pytest.approx(12.0 / best.chance.value)


def test_faster_one_is_recommended_once_it_hits_as_often() -> None:
    policy = restored(log_of([*SHORT, *[(0.4, 5, 0.912)] * 4, *SURE]))
    best, slower = policy.favourites
    assert (best.trial_id, best.runs, best.hits) == ("t0003", 4, 4)
    assert slower.trial_id == "t0009" and best.expected_s < slower.expected_s


def test_of_a_free_length_the_recommended_has_the_least_time_over_hits_with_a_doubt() -> None:
    def best_of(*runs: tuple[float, int, float]) -> Recommended:
        policy = make_policy("anytime")
        policy.restore(finished=log_of(runs), unfinished=[])
        return policy.favourites[0]

    lucky, sure = (0.2, 5, 0.91), (0.8, 6, 0.91)
    assert best_of(lucky, sure).trial_id == "t0000"
    # 11.5 s may be expected of the first run of 10 s; 12 s of four are 12 s.
    best = best_of(lucky, (0.2, 5, 0.89), *[sure] * 4)
    assert (best.trial_id, best.runs, best.hits, best.expected_s) == ("t0002", 4, 4, 12.0)
    best = best_of(*[lucky] * 3, (0.2, 5, 0.89), *[(0.8, 7, 0.91)] * 4)
    assert (best.trial_id, best.runs, best.hits) == ("t0000", 4, 3)
    assert best.expected_s == pytest.approx(40.0 / 3)
    assert best.chance is not None and best.chance.ends is not None
    assert best.chance.ends[0] < best.chance.value == 3.5 / 5 < best.chance.ends[1]


def test_lucky_run_screens_out_nothing_that_takes_less_than_is_expected() -> None:
    policy = restored(log_of([*SHORT, *ALMOST, LUCKY, *[(0.4, 7, 0.911)] * 4]))
    best = policy.favourites[0]
    assert policy.leader is not None
    assert policy.leader.time_to_target_s == 10.0 and 14.0 < best.expected_s < 16.0
    assert [policy._allowed({"x": 0.6, "epochs": n}) for n in (6, 7, 8)] == [12.0, 14.0, None]


def test_lucky_run_stops_nothing_that_takes_less_than_is_expected() -> None:
    between = Proposal("t0020", {"x": 0.6, "epochs": 6})
    policy = restored(unfinished=[between])
    best = policy.favourites[0]
    assert ask(policy) == between
    for train_s, step in ((3.0, 1), (10.1, 2), (11.9, 3)):
        assert policy.report("t0020", train_s=train_s, step=step, metric=0.7) is None
    to_beat_s = policy._history.to_beat_s()
    assert 12.0 < to_beat_s <= best.expected_s
    late_s = to_beat_s + 0.1
    reason = policy.report("t0020", train_s=late_s, step=4, metric=0.7)
    assert str(reason) == (
        f"stopped at {late_s:.1f} s: {SURE_ID}, which is recommended, takes {to_beat_s:.1f} s"
        " with restarts"
    )


# Another run always teaches enough; or never does.
SOME, NONE = (AcquisitionSettings(least_gain=gain) for gain in (-1.0, 100.0))


def test_at_the_end_what_was_tried_is_run_again_under_a_new_id() -> None:
    policy = restored(RIVALS, acquisition=SOME)
    policy.spent = 0.85
    proposal = ask(policy)
    assert proposal.trial_id == "t0011" and proposal.params in TRIED
    first = next(p.trial_id for p, _ in RIVALS if p.params == proposal.params)
    num = TRIED.count(proposal.params)
    assert str(proposal.reason).startswith(f"again: run {num + 1} of {first}'s configuration")


@pytest.mark.parametrize("hold_back", [0.15, 0.5])
def test_at_the_end_only_what_was_tried_is_run(hold_back: float) -> None:
    policy = restored(RIVALS, hold_back=hold_back, acquisition=SOME)
    policy.spent = 1 - hold_back
    for _ in range(3):
        proposal = ask(policy)
        assert proposal.params in TRIED and proposal.reason.kind == "again"
        x, epochs = proposal.params["x"], proposal.params["epochs"]
        outcome = ended(0, x, epochs, RIVALS[TRIED.index(proposal.params)][1].curve.metric[-1])[1]
        policy.finish(proposal.trial_id, outcome)


@pytest.mark.parametrize(("spent", "hold_back"), [(0.84, 0.15), (0.49, 0.5), (0.99, 0.0)])
def test_before_the_end_or_where_there_is_none_nothing_is_forced(
    spent: float, hold_back: float
) -> None:
    policy = restored(RIVALS, hold_back=hold_back)
    policy.spent = spent
    assert ask(policy) == ask(restored(RIVALS))


def test_at_the_end_the_favourite_is_run_until_four_runs_say_how_good_it_is() -> None:
    policy = restored(RIVALS, acquisition=NONE)
    policy.spent = 0.9
    best = policy.favourites[0]
    proposal = ask(policy)
    assert best.runs == 3
    assert proposal.params == next(p.params for p, _ in RIVALS if p.trial_id == best.trial_id)
    # Then what could be best goes on being run, though one run more cannot turn the order.
    for _ in range(3):
        more = ask(policy)
        assert more.reason.kind == "again" and more.params in TRIED


def test_at_the_end_what_was_run_four_times_is_recommended_first() -> None:
    """A longer recipe that met the target in four of four runs, and a shorter one in two of two."""
    late = [(0.42, 4, 0.915)] * 2
    policy = restored(log_of([*SHORT, *ALMOST, *SURE, *late]))
    assert [each.runs for each in policy.favourites[:2]] == [2, 4]
    policy.spent = 0.9
    assert [each.runs for each in policy.favourites[:2]] == [4, 2]
    assert ask(policy).params == {"x": 0.42, "epochs": 4}, "and the other may still catch up"


def test_without_repeats_nothing_is_run_again_and_nothing_before_a_hit() -> None:
    never = restored(RIVALS, repeats=False, acquisition=SOME)
    for policy in (never, restored(log_of([*SHORT, *ALMOST]))):
        policy.spent = 0.95
        for _ in range(3):
            assert ask(policy).params not in TRIED


def test_favourite_of_a_free_length_is_run_four_times_before_anything_new() -> None:
    policy = make_policy("anytime")
    policy.restore(finished=log_of([*SHORT, *ALMOST, (0.4, 6, 0.92)]), unfinished=[])
    favourite = {"x": 0.4, "epochs": 6}
    for num in (2, 3, 4):
        again, other = ask(policy), ask(policy)
        assert again.params == favourite and str(again.reason) == (
            f"again: run {num} of t0009's configuration, which met the target in {num - 1} of"
            f" {num - 1}"
        )
        assert other.reason.kind != "again"
        policy.withdraw(other.trial_id)
        policy.finish(again.trial_id, ended(0, 0.4, 6, 0.92)[1])
    assert ask(policy).reason.kind != "again"
    policy.spent = 0.9
    assert ask(policy).params == favourite


def noisy(proposal: Proposal, mode: str) -> Outcome:
    luck = np.random.default_rng(int(proposal.trial_id[1:])).normal()
    x, epochs = proposal.params["x"], proposal.params["epochs"]
    clock = 2.0 * np.arange(1, epochs + 1)
    metric = 0.96 - 0.3 * abs(x - 0.4) - 0.3 / (1 + np.arange(1, epochs + 1)) + 0.01 * luck
    is_hit = metric[-1] >= 0.9
    if mode == "anytime" and is_hit:
        first = int(np.argmax(metric >= 0.9))
        clock, metric = clock[: first + 1], metric[: first + 1]
    status = Status.REACHED if is_hit else Status.MISSED
    return Outcome(status, float(clock[-1]), Curve(clock, metric))


@pytest.mark.parametrize("mode", MODES)
def test_restored_policy_proposes_and_recommends_as_one_without_a_break(mode: str) -> None:
    num, whole = 24, make_policy(mode)
    log: Log = []
    for number in range(num):
        whole.spent = number / num
        proposal = ask(whole)
        log.append((proposal, noisy(proposal, mode)))
        whole.finish(proposal.trial_id, log[-1][1])
    assert any(proposal.reason.kind == "again" for proposal, _ in log)
    for finished in (16, 22):
        part = make_policy(mode)
        part.restore(finished=log[:finished], unfinished=[log[finished][0]])
        for number in range(finished, num):
            part.spent = number / num
            assert ask(part) == log[number][0]
            part.finish(log[number][0].trial_id, log[number][1])
        assert part.favourites == whole.favourites != ()
        assert ask(part) == ask(make_restored(mode, log))


def make_restored(mode: str, log: Log) -> TimeToTarget:
    policy = make_policy(mode)
    policy.restore(finished=log, unfinished=[])
    policy.spent = (len(log) - 1) / len(log)
    return policy


@pytest.mark.parametrize("status", [Status.DIVERGED, Status.OOM, Status.FAILED])
def test_favourite_of_a_free_length_that_fails_again_and_again_is_given_up(status: Status) -> None:
    policy = make_policy("anytime")
    policy.restore(finished=log_of([*SHORT, *ALMOST, (0.4, 6, 0.92)]), unfinished=[])
    reasons = []
    for _ in range(8):
        proposal = ask(policy)
        reasons.append(proposal.reason)
        seen = Curve(np.array([1.0, 2.0]), np.array([0.3, np.nan]))
        policy.finish(proposal.trial_id, Outcome(status, 2.0, seen))
    assert not all(reason.kind == "again" for reason in reasons)


def test_runs_of_a_configuration_are_its_repeats_though_their_times_differ_a_little() -> None:
    """Measured times do; the noise that the model sees must not depend on a billionth of them."""
    rng = np.random.default_rng(0)
    jittered = []
    for proposal, outcome in SEEN:
        factor = 1 + 1e-9 * rng.normal()
        curve = Curve(outcome.curve.train_s * factor, outcome.curve.metric)
        jittered.append((proposal, Outcome(outcome.status, outcome.train_s * factor, curve)))
    best, same = (restored(log).favourites[0] for log in (SEEN, jittered))
    assert same.chance is not None and best.chance is not None
    assert same.chance.low == pytest.approx(best.chance.low, rel=1e-4)


def test_leader_that_repeats_another_before_there_is_a_model_ends_no_search() -> None:
    """Raises StopIteration in `_repeat`: the leader is not its configuration's first trial."""
    policy = restored(log_of([SURE[0]]))
    policy.spent = 0.9
    again = ask(policy)
    curve = Curve(np.array([5.0, 11.0]), np.array([0.85, 0.92]))
    policy.finish(again.trial_id, Outcome(Status.REACHED, 11.0, curve))
    assert ask(policy) is not None


def test_what_did_not_fit_into_memory_is_not_run_again() -> None:
    """Of what has no distance the model hopes for the best; and it costs a simulation no time."""
    seen = log_of([(0.1, 3, 0.86), (0.2, 3, 0.87), (0.3, 4, 0.88), (0.2, 12, 0.91)])
    params = {"x": 0.8, "epochs": 3}
    oom = (Proposal("t0004", params), Outcome(Status.OOM, 0.0, NO_CURVE))
    policy = restored([*seen, oom])
    policy.spent = 0.95
    for _ in range(6):
        proposal = ask(policy)
        assert proposal.params != params
        x, epochs = proposal.params["x"], proposal.params["epochs"]
        outcome = ended(0, x, epochs, 0.905 if epochs == 12 else 0.87)[1]
        policy.finish(proposal.trial_id, outcome)


def test_favourite_is_named_by_the_run_with_the_best_end_of_its_fastest() -> None:
    policy = restored(log_of([*SHORT, *[(0.4, 6, end) for end in (0.908, 0.912, 0.911)]]))
    (best,) = policy.favourites
    assert (best.trial_id, best.runs, best.hits) == ("t0004", 3, 3)


def test_favourite_that_nothing_can_beat_is_run_four_times_before_the_search_ends() -> None:
    policy = restored(log_of([(0.4, 1, 0.99), *[(x, 2, 0.9901) for x in (0.2, 0.3, 0.5, 0.6)]]))
    for number in (5, 6, 7):
        proposal = ask(policy)
        assert proposal.params == {"x": 0.4, "epochs": 1} and "again" in str(proposal.reason)
        _, outcome = ended(number, 0.4, 1, 0.99)
        policy.finish(proposal.trial_id, outcome)
    assert policy.favourites[0].runs == 4
    assert policy.ask() is None
