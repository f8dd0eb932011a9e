"""How good the best recipe within a training time is that searches of one budget recommend.

    python tests/benchmarks/bench_best_within.py --seeds 6 --jobs 2 --out best_within.json
    python tests/benchmarks/bench_best_within.py --benchmarks digits_seeds.parquet --shares 0.2 0.5

Sides: ours; ours without repeats (`no_repeats`); Optuna's TPE and
GP, which maximise the metric at the end of a run, or where the time limit stopped it; Ray's
OptunaSearch and ASHA with the same objective (`asha`); random. Each searches each benchmark of
fixed length whose runs differ (`NOISY`), or tables of recorded runs, with a limit of
so large a share of the longest run (`--shares`), 20 times the limit as budget, and 4 workers. What
a side recommends (all but ours: the best run that ended in time) then runs 100 times more, or is
known by all its recorded runs. Printed is by how many points of accuracy the mean of these ends
lies below the best that any side has recommended in any search there; in each search, and as the
mean over all, with its 95 % interval over benchmarks and seeds (Student's t).
"""

import argparse
import json
import logging
import math
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Each search is a process.

import optuna
from truths import Within

from tune_speed.core.stats import mean_interval
from tune_speed.tuning.baselines.plain import Plain
from tune_speed.tuning.policy.base import Cost, Policy, Problem, SearchTarget
from tune_speed.tuning.policy.best_within import BestWithin
from tune_speed.tuning.policy.settings import Parts
from tune_speed.tuning.simulation.benchmarks import find_benchmark
from tune_speed.tuning.simulation.simulate import new_policy, run_policy
from tune_speed.tuning.simulation.synthetic import NOISY

BUDGET_RUNS, WORKERS = 20.0, 4
Task = tuple[str, str, float, int]


def ours(benchmark: Within, seed: int, **parts: Any) -> Policy:
    return BestWithin(problem_of(benchmark, seed), parts=Parts(**parts))


def plain(benchmark: Within, seed: int, *, sampler: str) -> Policy:
    return Plain(problem_of(benchmark, seed), sampler=sampler)


def problem_of(benchmark: Within, seed: int) -> Problem:
    target = SearchTarget(benchmark.target, benchmark.mode, benchmark.within_s, best=True)
    return Problem(
        benchmark.space, target, lambda params: Cost(benchmark.predicted_cost(params)), seed
    )


SIDES: dict[str, Callable[[Within, int], Policy]] = {
    "ours": ours,
    "no_repeats": partial(ours, repeats=False),
    "tpe": partial(plain, sampler="tpe"),
    "gp": partial(plain, sampler="gp"),
    "asha": lambda benchmark, seed: new_policy("vanilla", benchmark, seed),
    "random": partial(plain, sampler="random"),
}


def search(task: Task) -> dict[str, Any]:
    """Returns the true mean end of what a search recommends."""
    side, name, share, seed = task
    optuna.logging.disable_default_handler()  # Of GPSampler, a warning for each parameter.
    logging.getLogger("optuna").addHandler(logging.NullHandler())
    found: Any = find_benchmark(name)
    benchmark = Within(found, share).fresh(seed)
    budget_s = BUDGET_RUNS * benchmark.within_s / WORKERS
    policy = SIDES[side](benchmark, seed)
    trace = run_policy(policy, benchmark, num_workers=WORKERS, budget_s=budget_s)
    end = 0.0 if trace.recommended is None else benchmark.truth(trace.recommended)
    row = {"side": side, "benchmark": benchmark.name, "seed": seed, "end": end}
    return row | {"trials": len(trace.trials)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    fixed = [name for name in NOISY if name.endswith("fixed_length")]
    parser.add_argument("--benchmarks", nargs="+", default=fixed)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=list(SIDES))
    parser.add_argument("--shares", nargs="+", type=float, default=[0.1, 0.4])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write each search there, as JSON")
    options = parser.parse_args()
    tasks: list[Task] = [
        (side, name, share, seed)
        for seed in range(options.seeds)
        for name in options.benchmarks
        for share in options.shares
        for side in options.sides
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(search, tasks))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))
    best: dict[str, float] = {}
    for row in rows:
        best[row["benchmark"]] = max(row["end"], best.get(row["benchmark"], -math.inf))
    print("| side | below the best known, in points | worst benchmark | trials | n |")
    print("|---|---:|---:|---:|---:|")
    for side in options.sides:
        own = [row for row in rows if row["side"] == side]
        below: dict[str, list[float]] = {name: [] for name in best}
        for row in own:
            below[row["benchmark"]].append(100 * (best[row["benchmark"]] - row["end"]))
        mean = mean_interval([value for values in below.values() for value in values])
        ends = "" if mean.low is None else f" ({mean.low:.2f}–{mean.high:.2f})"
        worst = max(sum(values) / len(values) for values in below.values())
        trials = sum(row["trials"] for row in own) / len(own)
        print(f"| `{side}` | {mean.mean:.2f}{ends} | {worst:.2f} | {trials:.0f} | {len(own)} |")


if __name__ == "__main__":
    main()
