import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from helpers.tuning.policies import Capped, problem_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Recommended, Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Leader, Outcome, Proposal
from tune_speed.tuning.policy.curve import NO_CURVE, Curve, Mode, crossing
from tune_speed.tuning.simulation import simulate as simulate_module
from tune_speed.tuning.simulation.simulate import Trace, new_policy, run_policy

TARGET, NAN = 0.8, float("nan")
SPACE = SearchSpace.from_tree({"i": {"low": 0, "high": 10**6}})


class Recorded:
    """Trainings by number: the i-th curve, and so on from the first."""

    name, space, target = "recorded", SPACE, TARGET

    def __init__(self, curves: Sequence[Curve], mode: Mode = "fixed_length") -> None:
        self.curves, self.mode = curves, mode

    def curve(self, params: Mapping[str, Any]) -> Curve:
        return self.curves[params["i"] % len(self.curves)]

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        return self.curve(params).end_s


class Script:
    """A policy that proposes 0, 1, 2, ... and writes down what it is asked and told.

    It recommends its last hit before those before.
    """

    leader = None
    why_settled: str | None = None

    def __init__(self, num: int = 10**6, stop: Mapping[tuple[str, int], str] | None = None) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.outcomes: dict[str, Outcome] = {}
        self.most_open, self._num, self._stop, self._next = 10**6, num, stop or {}, 0
        self.favourites: tuple[Recommended, ...] = ()
        self.spent = 0.0
        self.spent_when_asked: list[float] = []

    def ask(self) -> Proposal | None:
        self.spent_when_asked.append(self.spent)
        is_full = self._next - len(self.outcomes) >= self.most_open
        if self._next == self._num or is_full:
            self.log.append(("nothing",))
            return None
        trial_id = f"t{self._next:04d}"
        self.log.append(("ask", trial_id))
        self._next += 1
        return Proposal(trial_id, {"i": self._next - 1})

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> str | None:
        self.log.append(("report", trial_id, train_s, step, metric))
        return self._stop.get((trial_id, step))

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        self.log.append(("finish", trial_id, str(outcome.status), outcome.train_s))
        self.outcomes[trial_id] = outcome
        if outcome.status == Status.REACHED:
            best = Recommended(trial_id=trial_id, runs=1, hits=1, expected_s=1.0)
            self.favourites = (best, *self.favourites)


def curve(*metric: float, every_s: float = 1.0) -> Curve:
    return Curve(every_s * np.arange(1, len(metric) + 1), np.array(metric))


def run(
    policy: Script, benchmark: Recorded, *, workers: int = 1, budget_s: float, overhead_s: float = 0
) -> Trace:
    how = {"num_workers": workers, "budget_s": budget_s, "trial_overhead_s": overhead_s}
    return run_policy(policy, benchmark, **how)


BY_HAND = [
    curve(0.5, 0.9, every_s=2.0),  # t0000: from 0, reaches at 1 + 4
    curve(0.1, 0.2, 0.3, every_s=3.0),  # t0001: from 0, misses at 1 + 9
    NO_CURVE,  # t0002: from 5, out of memory at 5 + 1
    curve(0.5, NAN, 0.9),  # t0003: from 6, diverges at 6 + 1 + 2
    curve(0.6, 0.7, 0.85, every_s=0.5),  # t0004: from 9, reaches at 9 + 1 + 1.5
    curve(0.2, 0.3, 0.4),  # t0005: from 10, stopped at 10 + 1 + 2
]


def test_two_workers_by_hand() -> None:
    policy = Script(num=6, stop={("t0005", 2): "enough"})
    trace = run(policy, Recorded(BY_HAND), workers=2, budget_s=20.0, overhead_s=1.0)
    assert policy.log == [
        ("ask", "t0000"),
        ("ask", "t0001"),
        ("report", "t0000", 2.0, 1, 0.5),
        ("report", "t0001", 3.0, 1, 0.1),
        ("finish", "t0000", "reached", 4.0),
        ("ask", "t0002"),
        ("finish", "t0002", "oom", 0.0),
        ("ask", "t0003"),
        ("report", "t0001", 6.0, 2, 0.2),
        ("report", "t0003", 1.0, 1, 0.5),
        ("finish", "t0003", "diverged", 2.0),
        ("ask", "t0004"),
        ("finish", "t0001", "missed", 9.0),
        ("ask", "t0005"),
        ("report", "t0004", 0.5, 1, 0.6),
        ("report", "t0004", 1.0, 2, 0.7),
        ("finish", "t0004", "reached", 1.5),
        ("nothing",),
        ("report", "t0005", 1.0, 1, 0.2),
        ("report", "t0005", 2.0, 2, 0.3),
        ("finish", "t0005", "capped", 2.0),
        ("nothing",),
        ("nothing",),
    ]
    spans = [(t.trial_id, t.started_s, t.ended_s, t.train_s) for t in trace.trials]
    assert spans == [
        ("t0000", 0.0, 5.0, 4.0),
        ("t0002", 5.0, 6.0, 0.0),
        ("t0003", 6.0, 9.0, 2.0),
        ("t0001", 0.0, 10.0, 9.0),
        ("t0004", 9.0, 11.5, 1.5),
        ("t0005", 10.0, 13.0, 2.0),
    ]
    assert trace.incumbents == [(5.0, 4.0, {"i": 0}), (11.5, 1.5, {"i": 4})]
    assert trace.best_s == 1.5
    assert trace.recommended == {"i": 4}
    assert policy.spent_when_asked == [at_s / 20 for at_s in (0, 0, 5, 6, 9, 10, 11.5, 13, 13)]
    assert trace.trials[-1].stop_reason == "enough"


def test_anytime_run_ends_where_the_second_pass_confirms_the_first() -> None:
    policy = Script(num=1)
    trace = run(policy, Recorded([curve(0.9, 0.1, 0.8, 0.85, 0.9)], "anytime"), budget_s=99.0)
    assert policy.log[1:-1] == [
        ("report", "t0000", 1.0, 1, 0.9),
        ("report", "t0000", 2.0, 2, 0.1),
        ("report", "t0000", 3.0, 3, 0.8),
        ("finish", "t0000", "reached", 3.0),
    ]
    assert (trace.trials[0].ended_s, trace.trials[0].train_s) == (4.0, 4.0)
    assert len(policy.outcomes["t0000"].curve.metric) == 4


def test_idle_worker_asks_again_when_a_trial_ends() -> None:
    policy = Script(num=4)
    policy.most_open = 1
    trace = run(policy, Recorded([curve(0.1)]), workers=3, budget_s=99.0)
    assert [(t.started_s, t.ended_s) for t in trace.trials] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_event_at_the_budget_counts_and_later_ones_do_not() -> None:
    assert run(Script(), Recorded([curve(0.9)]), budget_s=3.0).trials[-1].ended_s == 3.0
    assert run(Script(), Recorded([curve(0.9)]), budget_s=2.999).trials[-1].ended_s == 2.0


def test_free_trials_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_module, "MAX_TRIALS", 25)
    trace = run(Script(), Recorded([NO_CURVE]), workers=3, budget_s=10.0)
    assert len(trace.trials) == 25
    assert {trial.status for trial in trace.trials} == {Status.OOM}
    assert trace.best_s == float("inf")


def test_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="vanila"):
        new_policy("vanila", Recorded([NO_CURVE]), 0)


# Times are halves, so that sums are exact and many events fall together.
metrics = st.sampled_from([0.1, 0.5, 0.79, 0.8, 0.9, NAN])
runs = st.builds(
    lambda metric, every_s: curve(*metric, every_s=every_s) if metric else NO_CURVE,
    st.lists(metrics, max_size=6),
    st.sampled_from([0.5, 1.0, 1.5]),
)
modes = st.sampled_from(["fixed_length", "anytime"])


@st.composite
def searches(draw: st.DrawFn) -> tuple[Script, Recorded, dict[str, Any]]:
    curves = draw(st.lists(runs, min_size=1, max_size=6))
    stops = draw(st.sets(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=8))
    policy = Script(draw(st.integers(1, 40)), {(f"t{i:04d}", k): "stopped" for i, k in stops})
    policy.most_open = draw(st.integers(1, 4))
    how = {
        "workers": draw(st.integers(1, 4)),
        "budget_s": draw(st.sampled_from([0.5, 5.0, 12.0])),
        "overhead_s": draw(st.sampled_from([0.0, 0.5, 1.0])),
    }
    return policy, Recorded(curves, draw(modes)), how


class Shuffled:
    """A queue that gives the least event, and of equal ones any."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def heappush(self, heap: list[Any], item: Any) -> None:
        heap.append(item)
        self._random.shuffle(heap)

    @staticmethod
    def heappop(heap: list[Any]) -> Any:
        least = min(heap)
        heap.remove(least)
        return least


def again(policy: Script) -> Script:
    copy = Script(policy._num, policy._stop)
    copy.most_open = policy.most_open
    return copy


@settings(max_examples=60)
@given(search=searches(), seed=st.integers(0, 99))
def test_order_of_what_is_equal_in_the_queue_does_not_matter(
    search: tuple[Script, Recorded, dict[str, Any]], seed: int
) -> None:
    policy, benchmark, how = search
    other = again(policy)
    trace = run(policy, benchmark, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate_module, "heapq", Shuffled(seed))
        shuffled = run(other, benchmark, **how)
    assert repr(other.log) == repr(policy.log)  # NaN differs from itself, its text does not.
    assert shuffled == trace


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Returns how many spans lie over each other at most, their ends not included."""
    edges = [edge for a, b in spans if a < b for edge in ((a, 1), (b, -1))]
    return int(max(np.cumsum([change for _, change in sorted(edges)]), default=0))


@settings(max_examples=100)
@given(search=searches())
def test_search_keeps_to_workers_budget_and_curves_and_its_incumbents_fall(
    search: tuple[Script, Recorded, dict[str, Any]],
) -> None:
    policy, benchmark, how = search
    trace = run(policy, benchmark, **how)
    assert most_at_once((t.started_s, t.ended_s) for t in trace.trials) <= how["workers"]
    ends, times = [t.ended_s for t in trace.trials], [i.time_to_target_s for i in trace.incumbents]
    assert ends == sorted(ends) and all(end <= how["budget_s"] for end in ends)
    assert times == sorted(set(times), reverse=True)
    assert {i.virtual_s for i in trace.incumbents} <= set(ends)
    reached = [o.train_s for o in policy.outcomes.values() if o.status == Status.REACHED]
    assert trace.best_s == min(reached, default=float("inf"))
    for trial in trace.trials:
        whole, outcome = benchmark.curve(trial.params), policy.outcomes[trial.trial_id]
        seen = len(outcome.curve.metric)
        np.testing.assert_array_equal(outcome.curve.metric, whole.metric[:seen])
        assert trial.ended_s == trial.started_s + how["overhead_s"] + trial.train_s
        hit = crossing(whole, target=TARGET, mode=benchmark.mode)
        if trial.status == Status.REACHED:
            assert hit is not None and outcome.train_s == whole.train_s[hit]
        if trial.status == Status.MISSED:
            assert hit is None and seen == len(whole.metric)
        assert (trial.status == Status.OOM) == (not len(whole.metric))
        assert (trial.status == Status.DIVERGED) == bool(np.isnan(outcome.curve.metric[-1:]).any())


def test_search_of_a_seed_is_always_the_same() -> None:
    benchmark = Recorded([curve(0.1, 0.9), curve(0.9), NO_CURVE, curve(0.2, 0.3, 0.8)])
    how = {"num_workers": 2, "budget_s": 30.0, "trial_overhead_s": 0.5}
    first, second = (
        run_policy(new_policy("random", benchmark, 3), benchmark, **how) for _ in range(2)
    )
    assert first == second
    assert first.best_s == 1.0


def test_trials_after_the_ten_thousandth_keep_their_order() -> None:
    policy = Script()
    policy._next = 9999
    run(policy, Recorded([curve(0.1, 0.2)]), workers=2, budget_s=1.0)
    reported = [entry[1] for entry in policy.log if entry[0] == "report"]
    assert reported == ["t9999", "t10000"]


def test_a_search_that_settled_says_why() -> None:
    for why in (None, "nothing better is likely"):
        policy = Script(num=3)
        policy.why_settled = why
        assert run(policy, Recorded([curve(0.9)]), budget_s=99.0).why_ended == why


def test_leader_of_a_capped_search_is_the_incumbent() -> None:
    benchmark = Recorded([curve(0.1, 0.9), curve(0.9), curve(0.2, 0.3, 0.8)])
    policy = Capped(problem_of(benchmark, 0))
    trace = run_policy(policy, benchmark, num_workers=2, budget_s=20.0)
    assert isinstance(policy.leader, Leader)
    assert policy.leader.time_to_target_s == trace.best_s


def test_search_without_a_hit_recommends_nothing() -> None:
    assert run(Script(), Recorded([curve(0.1)]), budget_s=5.0).recommended is None


class Noisy:
    """Trainings of which each has luck of its own: the same configuration twice is two runs."""

    name, target = "noisy", TARGET
    space = SearchSpace.from_tree({"x": {"low": 0.0, "high": 1.0}, "epochs": {"low": 2, "high": 9}})

    def __init__(self, mode: Mode) -> None:
        self.mode, self.num_runs = mode, 0

    def curve(self, params: Mapping[str, Any]) -> Curve:
        luck = 0.02 * np.random.default_rng(self.num_runs).normal()
        self.num_runs += 1
        seconds = np.arange(1.0, params["epochs"] + 1)
        return Curve(seconds, 0.9 - 0.4 * abs(params["x"] - 0.4) - 0.4 / (1 + seconds) + luck)

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        return float(params["epochs"])


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
def test_search_over_runs_that_differ_recommends_one_of_its_configurations(mode: Mode) -> None:
    differing = 0
    for seed in (0, 1, 2):
        benchmark = Noisy(mode)
        trace = run_policy(
            new_policy("time_to_target", benchmark, seed), benchmark, num_workers=2, budget_s=70.0
        )
        assert benchmark.num_runs >= len(trace.trials)
        hits = [t.params for t in trace.trials if t.status == Status.REACHED]
        assert trace.recommended in hits
        again = [t for t in trace.trials if t.reason.startswith("again:")]
        assert again and all(
            any(t.params == other.params and t.trial_id > other.trial_id for other in trace.trials)
            for t in again
        )
        ends = {(tuple(t.params.items()), t.train_s, t.status) for t in trace.trials}
        differing += len(ends) - len({tuple(t.params.items()) for t in trace.trials})
    assert differing


def test_search_of_another_policy_recommends_a_configuration_that_hit() -> None:
    benchmark = Noisy("fixed_length")
    trace = run_policy(new_policy("random", benchmark, 0), benchmark, num_workers=1, budget_s=60.0)
    assert trace.recommended in [t.params for t in trace.trials if t.status == Status.REACHED]
