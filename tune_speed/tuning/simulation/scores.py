"""How good simulated searches were: geometric means over seeds, and ratios to a baseline.

Intervals are percentile bootstraps (10,000 resamples, always the same) of paired seeds: the seeds
of a benchmark are drawn with replacement, and a policy and the baseline keep their seeds together.
Over several benchmarks, each has its seeds drawn by itself.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from tune_speed.core.text import Interval
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.simulation.benchmarks import Search

BASELINE = "vanilla"
# Times the best known: near enough.
NEAR = 1.25
CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a policy did on a benchmark, within a budget."""

    benchmark: str
    policy: str
    budget_runs: float
    """Full runs' worth."""
    num_seeds: int
    best_s: float
    """Best time to target [s], geometric mean over seeds."""
    num_missed: int
    """Seeds that never met the target."""
    best_ratio: Interval | None
    """None without the baseline."""
    near_s: float
    """Virtual time until within 1.25 times the best known [s], geometric mean over seeds."""
    num_not_near: int
    """Seeds that never came near."""
    near_ratio: Interval | None


@dataclass(frozen=True, kw_only=True)
class Overall:
    """How a policy did on all benchmarks: geometric means of its ratios to the baseline."""

    policy: str
    budget_runs: float
    num_benchmarks: int
    best_ratio: Interval
    worst_ratio: float
    """Of best times, on the benchmark where the policy did worst."""
    near_ratio: Interval


class _Measured(NamedTuple):
    best_s: float
    is_missed: bool
    near_s: float
    is_near: bool


_ByPolicy = dict[str, dict[int, _Measured]]
"""By policy and seed."""


def best_at(search: Search, virtual_s: float) -> float:
    """Returns the best time to target [s] found until then; infinite if there was none."""
    found = [time_s for at_s, time_s in search.incumbents if at_s <= virtual_s]
    return found[-1] if found else math.inf


def best_known_s(searches: Iterable[Search]) -> float:
    """Returns the best time to target on a benchmark [s], known or found; infinite if none was."""
    times = [search.incumbents[-1][1] for search in searches if search.incumbents]
    known = [search.best_known_s for search in searches if search.best_known_s is not None]
    return min([*times, *known], default=math.inf)


def score(searches: Sequence[Search], budgets: Sequence[float]) -> list[Score]:
    """Returns a score for each benchmark, policy and budget (full runs' worth), in that order."""
    scores = []
    for benchmark, own in _by_benchmark(searches).items():
        for budget_runs in budgets:
            measured = _measured_by_policy(own, budget_runs)
            scores += [_score(benchmark, policy, budget_runs, measured) for policy in measured]
    return scores


def overall(searches: Sequence[Search], budgets: Sequence[float]) -> list[Overall]:
    """Returns how each policy did on all benchmarks that the baseline ran on too."""
    rows = []
    for budget_runs in budgets:
        measured = [_measured_by_policy(s, budget_runs) for s in _by_benchmark(searches).values()]
        for policy in dict.fromkeys(name for on_one in measured for name in on_one):
            logs = [_log_ratios(on_one, policy) for on_one in measured]
            both = [each for each in logs if each.size]
            if policy == BASELINE or not both:
                continue
            rows.append(
                Overall(
                    policy=policy,
                    budget_runs=budget_runs,
                    num_benchmarks=len(both),
                    best_ratio=ratio([best for best, _ in both]),
                    worst_ratio=max(ratio([best]).value for best, _ in both),
                    near_ratio=ratio([near for _, near in both]),
                )
            )
    return rows


def _by_benchmark(searches: Sequence[Search]) -> dict[str, list[Search]]:
    names = dict.fromkeys(search.benchmark for search in searches)
    return {name: [search for search in searches if search.benchmark == name] for name in names}


def _measured_by_policy(searches: Sequence[Search], budget_runs: float) -> _ByPolicy:
    known_s = best_known_s(searches)
    measured: _ByPolicy = {}
    for search in searches:
        one = _measured(search, budget_runs, best_known_s=known_s)
        measured.setdefault(search.policy, {})[search.seed] = one
    return measured


def _measured(search: Search, budget_runs: float, *, best_known_s: float) -> _Measured:
    full_s = search.full_run_s
    until_s = search.terms.budget_s(budget_runs, full_s)
    best_s = best_at(search, until_s)
    near = [at_s for at_s, time_s in search.incumbents if time_s <= NEAR * best_known_s]
    is_near, is_missed = bool(near) and near[0] <= until_s, not math.isfinite(best_s)
    # A geometric mean takes no infinity: a full run's time, and the whole budget, are less than the
    # truth, so both favour the loser.
    best_s, near_s = full_s if is_missed else best_s, near[0] if is_near else until_s
    return _Measured(best_s, is_missed, near_s, is_near)


def _score(benchmark: str, policy: str, budget_runs: float, measured: _ByPolicy) -> Score:
    own, logs = measured[policy].values(), _log_ratios(measured, policy)
    has_ratio = policy != BASELINE and logs.size > 0
    return Score(
        benchmark=benchmark,
        policy=policy,
        budget_runs=budget_runs,
        num_seeds=len(own),
        best_s=statistics.geometric_mean(m.best_s for m in own),
        num_missed=sum(m.is_missed for m in own),
        best_ratio=ratio([logs[0]]) if has_ratio else None,
        near_s=statistics.geometric_mean(m.near_s for m in own),
        num_not_near=sum(not m.is_near for m in own),
        near_ratio=ratio([logs[1]]) if has_ratio else None,
    )


def _log_ratios(measured: _ByPolicy, policy: str) -> FloatArray:
    """Returns the logarithms of policy over baseline, of best and near, for each seed: (2, S)."""
    own, theirs = measured.get(policy, {}), measured.get(BASELINE, {})
    both = [(own[seed], theirs[seed]) for seed in own if seed in theirs]
    best = [math.log(ours.best_s / base.best_s) for ours, base in both]
    return np.array([best, [math.log(ours.near_s / base.near_s) for ours, base in both]])


def ratio(log_ratios: Sequence[FloatArray]) -> Interval:
    """Returns the geometric mean over benchmarks of that over seeds, with its interval.

    `log_ratios` has, for each benchmark, one logarithm a seed: (S,).
    """
    value = math.exp(np.mean([values.mean() for values in log_ratios]))
    if any(len(values) < 2 for values in log_ratios):
        return Interval(value)
    # Always the same draws: the same searches must give the same table.
    generator = np.random.default_rng(0)
    means = [
        values[generator.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
        for values in log_ratios
    ]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.exp(np.quantile(np.mean(means, axis=0), [tail, 1 - tail]))
    return Interval(value, float(low), float(high))


def comparison_dict(searches: Sequence[Search], budgets: Sequence[float]) -> dict[str, Any]:
    return {
        "budgets": list(budgets),
        "scores": [asdict(one) for one in score(searches, budgets)],
        "overall": [asdict(one) for one in overall(searches, budgets)],
        "searches": [asdict(search) for search in searches],
    }
