"""Many simulated searches: each policy on each benchmark with each seed, in several processes.

A search is simulated once, with the largest budget; what it would have had after a smaller one is
read off its incumbents, as no policy is told its budget. Budgets are given in full runs' worth: the
time in which the workers together can train that many of the benchmark's longest runs.
"""

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from tune_speed.tuning.policy.base import Policy
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.simulation.simulate import Benchmark, Trace, run_policy, simulate

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

    @property
    def key(self) -> tuple[str, str, int, Terms]:
        """What makes a search the same search."""
        return self.benchmark, self.policy, self.seed, self.terms

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Search":
        """Returns the search of `dataclasses.asdict`, as it comes back from JSON."""
        incumbents = tuple((float(at_s), float(best_s)) for at_s, best_s in fields["incumbents"])
        return cls(**{**fields, "terms": Terms(**fields["terms"]), "incumbents": incumbents})


class Task(NamedTuple):
    """A search to simulate."""

    benchmark: str
    policy: str
    seed: int


def full_run_s(benchmark: Benchmark) -> float:
    """Returns the seconds of a benchmark's longest run, at the corners of its space if need be."""
    own = getattr(benchmark, "full_run_s", None)
    if own is not None:
        return float(own)
    return max(benchmark.predicted_cost(params) for params in benchmark.space.corners())


def budget_s(runs: float, *, full_run_s: float, num_workers: int) -> float:
    """Returns a budget of full runs' worth as virtual time [s]."""
    return runs * full_run_s / num_workers


def run_searches(
    benchmarks: Sequence[Benchmark],
    policies: Sequence[str],
    *,
    seeds: Iterable[int],
    terms: Terms,
    factories: Mapping[str, Factory] | None = None,
    known: Iterable[Search] = (),
    jobs: int = 1,
) -> Iterator[Search]:
    """Yields each search once it is done, those already `known` first.

    Ends its processes when it is closed or interrupted.

    Args:
        benchmarks: of different names.
        policies: names, of `policies.py` or of `factories`.
        seeds: of the searches; all benchmarks and policies come once before the next seed does.
        terms: budget and workers.
        factories: policies that have no name elsewhere.
        known: finished searches of an earlier call; those of other terms are ignored.
        jobs: processes at the same time; 1: this one.
    """
    tasks = [Task(b.name, p, seed) for seed, b, p in product(seeds, benchmarks, policies)]
    found = {search.key[:3]: search for search in known if search.terms == terms}
    yield from (found[task] for task in tasks if task in found)
    left = [task for task in tasks if task not in found]
    bench = _Bench(benchmarks, factories or {}, terms)
    if jobs == 1 or len(left) < 2:
        yield from map(bench.run, left)
    else:
        yield from _in_processes(bench, left, jobs=min(jobs, len(left)))


class _Bench:
    """What every process has at hand."""

    def __init__(
        self, benchmarks: Sequence[Benchmark], factories: Mapping[str, Factory], terms: Terms
    ) -> None:
        hush_optuna()
        self._benchmarks = {benchmark.name: benchmark for benchmark in benchmarks}
        self._factories, self._terms = factories, terms
        # Found out here, once, and not in every process.
        self._full_run_s = {b.name: full_run_s(b) for b in benchmarks}
        assert all(0.0 <= benchmark.target <= 1.0 for benchmark in benchmarks)

    def run(self, task: Task) -> Search:
        benchmark = self._benchmarks[task.benchmark]
        started = time.perf_counter()
        trace = self._trace(benchmark, task)
        return Search(
            benchmark=task.benchmark,
            policy=task.policy,
            seed=task.seed,
            terms=self._terms,
            full_run_s=self._full_run_s[task.benchmark],
            best_known_s=getattr(benchmark, "best_known_s", None),
            incumbents=tuple((i.virtual_s, i.time_to_target_s) for i in trace.incumbents),
            statuses=dict(Counter(trial.status.value for trial in trace.trials)),
            took_s=time.perf_counter() - started,
        )

    def _trace(self, benchmark: Benchmark, task: Task) -> Trace:
        terms = self._terms
        whole_s = budget_s(
            terms.budget_runs,
            full_run_s=self._full_run_s[task.benchmark],
            num_workers=terms.num_workers,
        )
        if task.policy in self._factories:
            return run_policy(
                self._factories[task.policy](benchmark, task.seed),
                benchmark,
                num_workers=terms.num_workers,
                budget_s=whole_s,
                trial_overhead_s=terms.trial_overhead_s,
            )
        return simulate(
            task.policy,
            benchmark,
            num_workers=terms.num_workers,
            budget_s=whole_s,
            seed=task.seed,
            trial_overhead_s=terms.trial_overhead_s,
        )


_bench: _Bench | None = None


def _take(bench: _Bench) -> None:
    """Prepares a process. Ctrl-C is for the one that started it."""
    global _bench
    _bench = bench
    hush_optuna()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(task: Task) -> Search:
    assert _bench is not None
    return _bench.run(task)


def _in_processes(bench: _Bench, tasks: Sequence[Task], *, jobs: int) -> Iterator[Search]:
    context = multiprocessing.get_context("spawn")  # Forking a process that has threads may hang.
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, context, initializer=_take, initargs=(bench,))
    is_complete = False
    try:
        with _one_thread_each():
            futures: list[Future[Search]] = [pool.submit(_run, task) for task in tasks]
            for future in as_completed(futures):
                yield future.result()
        is_complete = True
    finally:
        pool.shutdown(wait=is_complete, cancel_futures=True)
        if not is_complete:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Keeps the processes that start now from using a whole machine's threads each."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    added = [name for name in names if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
