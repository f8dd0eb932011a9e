"""How good what a search recommends is, where runs of one configuration differ.

    python tests/benchmarks/bench_noisy_search.py --seeds 10 --jobs 2 --out noisy.json

Sides: ours, also ending once nothing better is likely (`until`), without repeats (`no_repeats`),
and with 100 to 200 trials kept (`forgets`); vanilla, random; ours without repeats and vanilla with
their five fastest run three times more at the end (`…+reruns`); SMAC3, if it is installed. Of each
also the configuration of its fastest run (`…, fastest run`). Each searches each benchmark of
`NOISY`, or tables of recorded runs with several seeds each, with 20 full runs' worth
and 4 workers; what it recommends then runs 400 times more, or is known by all its runs. Printed:
the true expected time with restarts over the best that any side has tried there (geometric mean
over seeds), the chance that a run meets the target, and how often it is at least one half.

`--told 6 12` says instead what could be reached where runs are recorded, by a side that knows which
so many configurations are truly best and spends the budget on equally many runs of each.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Each search is a process.

import numpy as np
from noisy_sides import Smac, WithReruns
from truths import truth

from tune_speed.core.records import Status
from tune_speed.study.settings import UntilConfig
from tune_speed.tuning.policy.base import Cost, Parts, Policy, Problem, SearchTarget
from tune_speed.tuning.policy.expected_time import doubt
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.policy.time_to_target import TimeToTarget
from tune_speed.tuning.simulation.benchmarks import find_benchmark
from tune_speed.tuning.simulation.recorded import RecordedBenchmark
from tune_speed.tuning.simulation.simulate import new_policy, run_policy
from tune_speed.tuning.simulation.synthetic import NOISY, Noisy

BUDGET_RUNS, WORKERS = 20.0, 4
Row = dict[str, Any]
MOST_CANDIDATES = 12
"""Fastest hits of each search whose true times are computed for the best known."""


def ours(benchmark: Noisy | RecordedBenchmark, seed: int, *, parts: Parts) -> Policy:
    target = SearchTarget(benchmark.target, benchmark.mode, math.inf)
    cost_of = lambda params: Cost(benchmark.predicted_cost(params))  # noqa: E731
    return TimeToTarget(Problem(benchmark.space, target, cost_of, seed), parts=parts)


def budget_of(benchmark: Noisy | RecordedBenchmark) -> float:
    return BUDGET_RUNS * benchmark.full_run_s / WORKERS


def with_reruns(benchmark: Noisy | RecordedBenchmark, seed: int, *, side: str) -> Policy:
    policy = SIDES[side](benchmark, seed)
    return WithReruns(policy, budget_s=budget_of(benchmark), workers=WORKERS)


SIDES: dict[str, Callable[[Any, int], Policy]] = {
    "ours": partial(ours, parts=Parts()),
    "until": partial(ours, parts=Parts(until=UntilConfig(probability_of_better=0.05))),
    "no_repeats": partial(ours, parts=Parts(repeats=False)),
    "forgets": partial(ours, parts=Parts(most_trials=100)),
    "vanilla": lambda benchmark, seed: new_policy("vanilla", benchmark, seed),
    "random": lambda benchmark, seed: new_policy("random", benchmark, seed),
    "no_repeats+reruns": partial(with_reruns, side="no_repeats"),
    "vanilla+reruns": partial(with_reruns, side="vanilla"),
    **({"smac": Smac} if find_spec("smac") else {}),
}


def find_noisy(name: str) -> Noisy | RecordedBenchmark:
    found = find_benchmark(name)
    assert isinstance(found, Noisy | RecordedBenchmark), f"runs of {name} do not differ"
    return found


def search(task: tuple[str, str, int]) -> list[Row]:
    """Returns a row for what the search recommends, and one for its fastest run."""
    side, name, seed = task
    hush_optuna()
    benchmark = find_noisy(name).fresh(seed)
    policy = SIDES[side](benchmark, seed)
    trace = run_policy(policy, benchmark, num_workers=WORKERS, budget_s=budget_of(benchmark))
    hits = [trial for trial in trace.trials if trial.status == Status.REACHED]
    hits.sort(key=lambda trial: trial.train_s)
    tried = {_key(each.params): each.params for each in hits[:MOST_CANDIDATES]}
    if trace.recommended is not None:
        tried[_key(trace.recommended)] = trace.recommended
    truths = {key: truth(benchmark, params) for key, params in tried.items()}
    rows = []
    fastest = hits[0].params if hits else None
    for what, params in ((side, trace.recommended), (f"{side}, fastest run", fastest)):
        chance, expected_s = truths[_key(params)] if params is not None else (0.0, math.inf)
        row = {
            "side": what,
            "benchmark": name,
            "seed": seed,
            "chance": chance,
            "expected_s": min(expected_s, BUDGET_RUNS * benchmark.full_run_s),
            "best_s": min((time_s for _, time_s in truths.values()), default=math.inf),
            "trials": len(trace.trials),
            "spent": max(t.ended_s for t in trace.trials) / budget_of(benchmark),
        }
        rows.append(row)
    return rows


def _key(params: Any) -> str:
    return json.dumps(sorted(params.items()))


def told(benchmark: RecordedBenchmark, num_best: int, *, draws: int = 4000) -> str:
    """Returns a line of what is recommended by who has only to tell the truly best apart."""
    every = {_key(run.params): run.params for run in benchmark.runs}.values()
    truths = np.array([(*truth(benchmark, p), benchmark.predicted_cost(p)) for p in every])
    chance, expected_s, cost_s = truths[truths[:, 1].argsort()][:num_best].T
    budget_s = BUDGET_RUNS * benchmark.full_run_s
    runs = budget_s / cost_s.sum()
    rng = np.random.default_rng(0)
    num = np.floor(runs + rng.random((draws, num_best)))
    seen = np.maximum(rng.binomial(num.astype(int), chance), 1e-3) / np.maximum(num, 0.5)
    best = np.argmin(np.log(cost_s) - np.log(seen) + doubt(seen), axis=1)
    mean = np.log(np.minimum(expected_s[best], budget_s)).mean()
    return (
        f"the {num_best} truly best, {runs:.1f} runs each: {math.exp(mean) / expected_s[0]:.2f} of"
        f" the best known, chance {chance[best].mean():.2f}, at least 0.5 in"
        f" {(chance[best] >= 0.5).mean():.0%}"
    )


def table(rows: list[Row]) -> Iterator[str]:
    best: dict[str, float] = {}
    for row in rows:
        best[row["benchmark"]] = min(row["best_s"], best.get(row["benchmark"], math.inf))
    yield "| side | benchmark | expected / best known | chance | at least 0.5 | budget used | n |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for side in dict.fromkeys(row["side"] for row in rows):
        means = []
        for name in dict.fromkeys(row["benchmark"] for row in rows):
            own = [row for row in rows if (row["side"], row["benchmark"]) == (side, name)]
            if not own:
                continue
            logs = [math.log(row["expected_s"] / best[name]) for row in own]
            chances = np.array([row["chance"] for row in own])
            spent = np.mean([row.get("spent", 1.0) for row in own])
            means.append(float(np.mean(logs)))
            yield (
                f"| {side} | {name} | {math.exp(means[-1]):.2f} | {chances.mean():.2f}"
                f" | {(chances >= 0.5).mean():.0%} | {spent:.0%} | {len(own)} |"
            )
        yield f"| {side} | all | {math.exp(np.mean(means)):.2f} | | | | |"


def read_rows(file: Path | None) -> list[Row]:
    return json.loads(file.read_text()) if file is not None and file.exists() else []


def run_all(
    search: Callable[[Any], list[Row]],
    tasks: Sequence[Any],
    rows: list[Row],
    *,
    jobs: int,
    out: Path | None,
) -> None:
    """Adds the rows of each task, and writes all rows to the file after each."""
    with ProcessPoolExecutor(jobs) as pool:
        for number, found in enumerate(pool.map(search, tasks), 1):
            rows += found
            print(f"{number}/{len(tasks)} {found[0]}", file=sys.stderr, flush=True)
            if out is not None:
                out.write_text(json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--benchmarks", nargs="+", default=list(NOISY))
    parser.add_argument("--out", type=Path, help="rows as JSON; searches that are there do not run")
    parser.add_argument("--told", nargs="+", type=int, metavar="N", help="what could be reached")
    options = parser.parse_args()
    if options.told:
        benchmarks = [RecordedBenchmark.load(name) for name in options.benchmarks]
        print("\n".join(told(each, num) for each in benchmarks for num in options.told))
        return
    rows = read_rows(options.out)
    done = {(row["side"], row["benchmark"], row["seed"]) for row in rows}
    tasks = [
        (side, name, seed)
        for seed in range(options.seeds)
        for name in options.benchmarks
        for side in options.sides
        if (side, name, seed) not in done
    ]
    run_all(search, tasks, rows, jobs=options.jobs, out=options.out)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
