"""Before a run meets the target, the budget is spread over what runs cost."""

import functools
import math

import numpy as np
import pytest

from tune_speed.tuning.policy.acquisition import NUM_BRACKETS, Brackets
from tune_speed.tuning.policy.base import Cost, Problem, SearchTarget
from tune_speed.tuning.policy.time_to_target import TimeToTarget
from tune_speed.tuning.simulation.simulate import run_policy
from tune_speed.tuning.simulation.synthetic import Synthetic


def test_a_bracket_spans_a_factor_of_three_and_the_last_has_all_that_is_cheaper() -> None:
    brackets = Brackets(90.0, (0.0,) * NUM_BRACKETS)
    costs = np.array([500.0, 90.0, 31.0, 29.0, 11.0, 9.0, 4.0, 3.0, 0.1, 0.0])
    assert brackets.of(costs).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3, 3]


def test_of_what_there_is_the_cost_with_the_least_spent_comes_first() -> None:
    brackets = Brackets.of_runs(90.0, np.array([90.0, 4.0, 4.0, 1.0]), np.array([90, 4, 3, 40.0]))
    assert brackets.spent_s == (90.0, 0.0, 7.0, 40.0)
    assert brackets.order == [1, 2, 3, 0]


class Unreachable(Synthetic):
    """As `Synthetic`, but no configuration meets the target."""

    @functools.cached_property
    def target(self) -> float:
        return 0.999


@pytest.mark.parametrize("seed", [0, 1])
def test_without_a_hit_no_length_takes_the_budget(seed: int) -> None:
    benchmark = Unreachable(0.04, "fixed_length")
    target = SearchTarget(benchmark.target, "fixed_length", math.inf)
    cost_of = lambda params: Cost(benchmark.predicted_cost(params))  # noqa: E731
    policy = TimeToTarget(Problem(benchmark.space, target, cost_of, seed))
    trace = run_policy(policy, benchmark, num_workers=2, budget_s=3 * benchmark.full_run_s)
    costs = np.array([benchmark.predicted_cost(trial.params) for trial in trace.trials])
    took = np.array([trial.train_s for trial in trace.trials])
    spent = Brackets.of_runs(costs.max(), costs, took).spent_s
    cheap = sum(cost < costs.max() / 9 for cost in costs) / len(costs)
    assert cheap > 0.4 and spent[0] < 0.85 * sum(spent), (cheap, spent)
