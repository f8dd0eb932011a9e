"""Benchmarks by name, and searches on them: one to look at, or many to compare, in processes.

A compared search is simulated once, with the largest budget; smaller ones are read off its
incumbents, as no policy knows its budget. Budgets are given in full runs' worth: the time in which
the workers together can train that many of the benchmark's longest runs.
"""

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.core.renamed import LEFT, LEFT_MUST
from tune_speed.tuning.policies import POLICY_NAMES
from tune_speed.tuning.policy.base import Policy
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.simulation.recorded import RecordedBenchmark
from tune_speed.tuning.simulation.simulate import Benchmark, Trace, new_policy, run_policy
from tune_speed.tuning.simulation.synthetic import NOISY, Noisy, Synthetic

# Benchmarks that need no file; a `%` after the number is allowed.
SYNTHETIC: dict[str, Synthetic] = {
    f"synthetic-{share:.0%}-{mode}".replace("%", ""): Synthetic(share, mode)
    for mode in ("fixed_length", "anytime")
    for share in (0.01, 0.04, 0.15)
}

NAMED: Mapping[str, Benchmark] = {**SYNTHETIC, **NOISY}

Factory = Callable[[Benchmark, int], Policy]
"""From a benchmark and a seed to a policy; at the top of a module, as other processes import it."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What all searches of a comparison have in common."""

    budget_runs: float
    """Largest budget, in full runs' worth."""
    num_workers: int = 4
    trial_overhead_s: float = 0.0
    """Start-up time of a trial [s], not on its training clock."""

    def budget_s(self, runs: float, full_run_s: float) -> float:
        """Returns a budget of full runs' worth as virtual time [s]."""
        return runs * full_run_s / self.num_workers

    def run(self, policy: Policy, benchmark: Benchmark, full_run_s: float) -> Trace:
        return run_policy(
            policy,
            benchmark,
            num_workers=self.num_workers,
            budget_s=self.budget_s(self.budget_runs, full_run_s),
            trial_overhead_s=self.trial_overhead_s,
        )


class Demonstration(NamedTuple):
    """One simulated search."""

    policy: str
    benchmark: Benchmark
    terms: Terms
    seed: int
    trace: Trace


@dataclass(frozen=True, kw_only=True)
class Search:
    """A finished simulated search."""

    benchmark: str
    policy: str
    seed: int
    terms: Terms
    full_run_s: float
    """Seconds of the benchmark's longest run."""
    best_known_s: float | None
    """Best time to target that there is [s], where the benchmark says so."""
    incumbents: tuple[tuple[float, float], ...]
    """Virtual time and time to target of each new best, both in seconds."""
    statuses: dict[str, int]
    """Number of trials by how they ended."""
    took_s: float
    """Seconds that the simulation took."""


Task = tuple[str, str, int]
"""Benchmark, policy and seed of a search to simulate."""


class Plan:
    """Searches to simulate: each policy on each benchmark with each seed."""

    def __init__(
        self,
        benchmarks: Sequence[Benchmark],
        policies: Sequence[str],
        *,
        seeds: Iterable[int],
        terms: Terms,
        factories: Mapping[str, Factory] | None = None,
    ) -> None:
        """Takes benchmarks of different names, and policies as in `policies.py` or `factories`."""
        hush_optuna()
        self._benchmarks = {benchmark.name: benchmark for benchmark in benchmarks}
        self._factories, self.terms, self._policies = factories or {}, terms, policies
        # A property that costs 4,000 draws where a benchmark is synthetic: here, not per process.
        self._full_run_s = {b.name: b.full_run_s for b in benchmarks}
        # Seeds outermost: whenever it is interrupted, policies can be compared on the seeds so far.
        self.tasks = [(b.name, p, seed) for seed, b, p in product(seeds, benchmarks, policies)]
        assert all(0.0 <= benchmark.target <= 1.0 for benchmark in benchmarks)

    def place(self, search: Search) -> tuple[int, int, int]:
        benchmarks = list(self._benchmarks)
        return benchmarks.index(search.benchmark), self._policies.index(search.policy), search.seed

    def run(self, task: Task) -> Search:
        name, policy, seed = task
        benchmark, full_run_s = self._benchmarks[name], self._full_run_s[name]
        # What one search ran must not change another's runs.
        if isinstance(benchmark, Noisy | RecordedBenchmark):
            benchmark = benchmark.fresh(seed)
        started = time.perf_counter()
        make = self._factories.get(policy) or partial(new_policy, policy)
        trace = self.terms.run(make(benchmark, seed), benchmark, full_run_s)
        return Search(
            benchmark=name,
            policy=policy,
            seed=seed,
            terms=self.terms,
            full_run_s=full_run_s,
            best_known_s=getattr(benchmark, "best_known_s", None),
            incumbents=tuple((i.virtual_s, i.time_to_target_s) for i in trace.incumbents),
            statuses=dict(Counter(trial.status.value for trial in trace.trials)),
            took_s=time.perf_counter() - started,
        )


class Comparison(NamedTuple):
    """Finished searches, benchmark by benchmark and policy by policy."""

    searches: list[Search]
    was_stopped: bool
    """Whether Ctrl-C ended it before all were done."""


def compare(plan: Plan, *, jobs: int, on_search: Callable[[Search, int, int], None]) -> Comparison:
    """Runs a plan; Ctrl-C ends it early. `on_search` gets each search, its number and all's."""
    done, was_stopped = list[Search](), False
    try:
        for search in run_searches(plan, jobs=jobs):
            done.append(search)
            on_search(search, len(done), len(plan.tasks))
    except KeyboardInterrupt:
        was_stopped = True
    return Comparison(sorted(done, key=plan.place), was_stopped)


def run_searches(plan: Plan, *, jobs: int = 1) -> Iterator[Search]:
    """Yields each search as it ends; ends its processes when it is closed or interrupted."""
    jobs = min(jobs, len(plan.tasks))
    return map(plan.run, plan.tasks) if jobs < 2 else _in_processes(plan, jobs)


_plan: Plan | None = None


def _start_process(plan: Plan) -> None:
    global _plan
    _plan = plan
    hush_optuna()
    # By default BLAS takes all cores in every process.
    threadpool_limits(1)
    # The terminal sends Ctrl-C to all processes; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(task: Task) -> Search:
    assert _plan is not None
    return _plan.run(task)


def _in_processes(plan: Plan, jobs: int) -> Iterator[Search]:
    # Forking a process that has threads may hang.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, context, initializer=_start_process, initargs=(plan,))
    is_complete = False
    try:
        futures = [pool.submit(_run, task) for task in plan.tasks]
        for future in as_completed(futures):
            yield future.result()
        is_complete = True
    finally:
        pool.shutdown(wait=is_complete, cancel_futures=True)
        # `shutdown` cancels what waits; a search that has begun would run to its end.
        if not is_complete:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()


def find_benchmark(name: str) -> Benchmark:
    """Returns a built-in benchmark by its name, or that of a Parquet file.

    Raises: ConfigError if there is no such one, or the file is no table of recorded runs.
    """
    plain = name.replace("%", "")
    if plain in NAMED:
        return NAMED[plain]
    if name.endswith(".parquet") or Path(name).is_file():
        return RecordedBenchmark.load(name)
    raise ConfigError(
        f"--benchmark must be a .parquet file or one of {', '.join(NAMED)}, but got"
        f" {name!r}{did_you_mean(name, NAMED) or '.'}"
    )


def find_benchmarks(names: Iterable[str]) -> list[Benchmark]:
    """Returns benchmarks of different names. Raises: ConfigError, as `find_benchmark`."""
    found: dict[str, Benchmark] = {}
    for name in names:
        benchmark = find_benchmark(name)
        if benchmark.name in found:
            raise ConfigError(
                f"--benchmark must name different benchmarks, but {name!r} is a second one called"
                f" {benchmark.name!r}. Leave one out."
            )
        found[benchmark.name] = benchmark
    return list(found.values())


def check_policies(names: Iterable[str]) -> list[str]:
    """Returns the names, repeated ones once. Raises: ConfigError if there is no such policy."""
    checked = list(dict.fromkeys(names))
    for name in checked:
        if left := next((each for each in LEFT if each.value == name), None):
            raise ConfigError(f"--policy {name} {LEFT_MUST}. {left.instead}")
        if name not in POLICY_NAMES:
            near = did_you_mean(name, POLICY_NAMES) or "."
            raise ConfigError(
                f"--policy must be one of {', '.join(POLICY_NAMES)}, but got {name!r}{near}"
            )
    return checked


def demonstrate(policy: str, benchmark: Benchmark, *, terms: Terms, seed: int = 0) -> Demonstration:
    hush_optuna()
    trace = terms.run(new_policy(policy, benchmark, seed), benchmark, benchmark.full_run_s)
    return Demonstration(policy, benchmark, terms, seed, trace)


def demonstration_dict(shown: Demonstration) -> dict[str, Any]:
    return {
        "policy": shown.policy,
        "benchmark": shown.benchmark.name,
        "target": shown.benchmark.target,
        "mode": shown.benchmark.mode,
        "seed": shown.seed,
        "terms": asdict(shown.terms),
        "full_run_s": shown.benchmark.full_run_s,
        **vars(shown.trace),
        "incumbents": [incumbent._asdict() for incumbent in shown.trace.incumbents],
        "trials": [trial._asdict() for trial in shown.trace.trials],
    }
