import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Cost, Outcome, Parts, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve, Mode, crossing
from tune_speed.tuning.policy.time_to_target import TimeToTarget
from tune_speed.tuning.simulation.simulate import Trace, run_policy

SPACE = SearchSpace.from_tree(
    {
        "lr": {"low": 0.01, "high": 1.0, "log": True},
        "batch_size": {"choices": [32, 64, 128]},
        "optimizer": {"choices": {"sgd": {"momentum": {"low": 0.0, "high": 0.9}}, "adam": None}},
        "epochs": {"low": 2, "high": 12},
    }
)
TARGET = 0.8
QUICK = settings(max_examples=4)
seeds = st.integers(0, 10_000)
modes = st.sampled_from(["fixed_length", "anytime"])


class Bumpy(NamedTuple):
    """Trainings that are nothing but random numbers, the same for the same configuration."""

    seed: int
    mode: Mode
    name: str = "bumpy"
    space: SearchSpace = SPACE
    target: float = TARGET

    def _units(self, params: Mapping[str, Any]) -> list[int]:
        return [int(1e6 * abs(float(v))) for v in params.values() if isinstance(v, int | float)]

    def _epoch_s(self, params: Mapping[str, Any]) -> float:
        return 1.0 + (self.seed + sum(self._units(params))) % 3

    def curve(self, params: Mapping[str, Any]) -> Curve:
        """Returns a rising curve with noise, in whole seconds, so that many events coincide."""
        rng = np.random.default_rng([self.seed, *self._units(params)])
        num = int(params["epochs"])
        metric = np.clip(np.sort(rng.random(num)) + 0.05 * rng.normal(size=num), 0, 1)
        if rng.random() < 0.1:
            metric[-1] = math.nan
        return Curve(self._epoch_s(params) * np.arange(1, num + 1), metric)

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        return self._epoch_s(params) * int(params["epochs"])


def make_policy(benchmark: Bumpy, **parts: Any) -> TimeToTarget:
    target = SearchTarget(TARGET, benchmark.mode, math.inf)
    problem = Problem(SPACE, target, lambda p: Cost(benchmark.predicted_cost(p)), benchmark.seed)
    return TimeToTarget(problem, parts=Parts(num_start=6, **parts))


def search(policy: TimeToTarget, benchmark: Bumpy) -> Trace:
    return run_policy(policy, benchmark, num_workers=3, budget_s=70.0)


@QUICK
@given(seed=seeds, mode=modes)
def test_cap_never_stops_a_trial_that_would_have_led(seed: int, mode: Mode) -> None:
    benchmark = Bumpy(seed, mode)
    trace = search(make_policy(benchmark, audit_share=1.0), benchmark)
    for trial in trace.trials:
        if trial.status != Status.CAPPED:
            continue
        curve = benchmark.curve(trial.params)
        hit = crossing(curve, target=TARGET, mode=mode)
        before = [i.time_to_target_s for i in trace.incumbents if i.virtual_s <= trial.ended_s]
        assert hit is None or curve.train_s[hit] >= min(before)


@QUICK
@given(seed=seeds, mode=modes)
def test_no_configuration_is_run_twice_but_those_that_are_said_to_be(seed: int, mode: Mode) -> None:
    benchmark = Bumpy(seed, mode)
    trace = search(make_policy(benchmark), benchmark)
    seen: set[tuple[tuple[str, Any], ...]] = set()
    for trial in sorted(trace.trials, key=lambda trial: trial.trial_id):
        key = tuple(trial.params.items())
        assert (key in seen) == trial.reason.startswith("again:")
        seen.add(key)
    without = search(make_policy(benchmark, repeats=False), benchmark)
    keys = [tuple(trial.params.items()) for trial in without.trials]
    assert len(set(keys)) == len(keys)


class Step(NamedTuple):
    proposal: Proposal
    outcome: Outcome | None
    spent: float
    """Of the budget."""


class Recorded:
    def __init__(self, policy: TimeToTarget) -> None:
        self.policy, self.log = policy, list[Step]()
        self._proposals: dict[str, Proposal] = {}

    def ask(self) -> Proposal | None:
        proposal = self.policy.ask()
        if proposal is not None:
            self._proposals[proposal.trial_id] = proposal
            self.log.append(Step(proposal, None, self.spent))
        return proposal

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        self.log.append(Step(self._proposals[trial_id], outcome, self.spent))
        self.policy.finish(trial_id, outcome)

    @property
    def spent(self) -> float:
        return self.policy.spent

    @spent.setter
    def spent(self, spent: float) -> None:
        self.policy.spent = spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


@pytest.mark.slow
@QUICK
@given(seed=seeds, mode=modes, share=st.floats(0.1, 0.9), most_trials=st.sampled_from([8, 400]))
def test_policy_rebuilt_from_its_ledger_goes_on_exactly(
    seed: int, mode: Mode, share: float, most_trials: int
) -> None:
    benchmark = Bumpy(seed, mode)
    recorded = Recorded(make_policy(benchmark, most_trials=most_trials))
    run_policy(recorded, benchmark, num_workers=3, budget_s=70.0)  # type: ignore[arg-type]
    cut = int(share * len(recorded.log))
    past, future = recorded.log[:cut], recorded.log[cut:]
    finished = [(step.proposal, step.outcome) for step in past if step.outcome is not None]
    ended = {proposal.trial_id for proposal, _ in finished}
    running = [s.proposal for s in past if not s.outcome and s.proposal.trial_id not in ended]
    rebuilt = make_policy(benchmark, most_trials=most_trials)
    rebuilt.restore(finished=finished, unfinished=running)
    assert [rebuilt.ask() for _ in running] == running
    for step in future:
        if step.outcome is None:
            rebuilt.spent = step.spent
            assert rebuilt.ask() == step.proposal
        else:
            rebuilt.finish(step.proposal.trial_id, step.outcome)
    assert rebuilt.favourites == recorded.favourites


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
@QUICK
@given(seed=seeds, order=st.permutations(range(4)))
def test_order_of_ends_at_the_same_time_does_not_matter(
    seed: int, mode: Mode, order: list[int]
) -> None:
    benchmark = Bumpy(seed, mode)
    asked = []
    for sequence in (range(4), order):
        policy = make_policy(benchmark)
        for _ in range(3):
            proposals = [p for _ in range(4) if (p := policy.ask()) is not None]
            for proposal in [proposals[i] for i in sequence if i < len(proposals)]:
                policy.finish(proposal.trial_id, outcome_of(benchmark, proposal))
        asked.append([policy.ask(), policy.leader])
    assert asked[0] == asked[1]


def outcome_of(benchmark: Bumpy, proposal: Proposal) -> Outcome:
    curve = benchmark.curve(proposal.params)
    if np.isnan(curve.metric).any():
        return Outcome(Status.DIVERGED, curve.end_s, curve)
    hit = crossing(curve, target=TARGET, mode=benchmark.mode)
    if hit is None:
        return Outcome(Status.MISSED, curve.end_s, curve)
    return Outcome(Status.REACHED, float(curve.train_s[hit]), curve)
