"""Whether a search comes home with a recipe, and a good one, where few meet the target.

    python tests/benchmarks/bench_hard_search.py --seeds 20 --jobs 2 --out hard.json

Tasks (`hard_tasks.py`): 0.2, 1 and 4 % of configurations meet the target; a run of 1 to 52 epochs
nearly suffices with one (`short`), with some ten (`medium`), or hardly with all of them (`long`);
runs differ by a spread of 0, 1 or 2 points. Sides: ours and random search, 20 full runs' worth and
4 workers. Printed for each kind: searches with a hit, the true expected time of what is recommended
over the best that there is (geometric mean, 90th percentile, worst; no hit counts as the whole
budget), and the share of the budget until the first hit.
"""

import argparse
import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from bench_noisy_search import BUDGET_RUNS, SIDES, WORKERS, budget_of, read_rows, run_all
from hard_tasks import SHAPES, Hard, best_expected_s
from truths import truth

from tune_speed.core.records import Status
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.simulation.simulate import run_policy
from tune_speed.tuning.simulation.synthetic import Noisy

SHARES, SPREADS = (0.002, 0.01, 0.04), (0.0, 0.01, 0.02)
Task = tuple[str, str, float, float, int]
Row = dict[str, Any]


def search(task: Task) -> list[Row]:
    side, shape, share, spread, seed = task
    hush_optuna()
    task_ = Hard(share, "fixed_length", seed, shape)
    benchmark = Noisy(task_, spread, seed=seed)
    policy = SIDES[side](benchmark, seed)
    trace = run_policy(policy, benchmark, num_workers=WORKERS, budget_s=budget_of(benchmark))
    hits = [trial for trial in trace.trials if trial.status == Status.REACHED]
    best = trace.recommended
    chance, expected_s = (0.0, math.inf) if best is None else truth(benchmark, best)
    row = {
        **{"side": side, "shape": shape, "share": share, "spread": spread, "seed": seed},
        **{"trials": len(trace.trials), "hits": len(hits), "chance": chance},
        "first": min((hit.ended_s for hit in hits), default=math.inf) / budget_of(benchmark),
        "expected_s": min(expected_s, BUDGET_RUNS * benchmark.full_run_s),
        "best_s": best_expected_s(task_, spread),
        "full_run_s": benchmark.full_run_s,
    }
    return [row]


def table(rows: list[Row]) -> Iterator[str]:
    yield "| side | tasks | with a hit | mean | 90th | worst | first hit | best / full run |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for side in dict.fromkeys(row["side"] for row in rows):
        own = [row for row in rows if row["side"] == side]
        yield line(side, "all", own)
        for name in ("shape", "share", "spread"):
            for value in sorted({row[name] for row in own}):
                yield line(side, f"{name} {value}", [row for row in own if row[name] == value])


def line(side: str, tasks: str, rows: list[Row]) -> str:
    ratios = np.array([row["expected_s"] / row["best_s"] for row in rows])
    shares = [row["best_s"] / row["full_run_s"] for row in rows]
    return (
        f"| {side} | {tasks} | {sum(row['hits'] > 0 for row in rows)} of {len(rows)}"
        f" | {np.exp(np.log(ratios).mean()):.2f} | {np.quantile(ratios, 0.9):.2f}"
        f" | {ratios.max():.1f} | {np.median([row['first'] for row in rows]):.1%}"
        f" | {np.exp(np.mean(np.log(shares))):.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["ours", "random"])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--spreads", nargs="+", type=float, default=SPREADS)
    parser.add_argument("--out", type=Path, help="rows as JSON; searches that are there do not run")
    options = parser.parse_args()
    rows = read_rows(options.out)
    done = {tuple(row[n] for n in ("side", "shape", "share", "spread", "seed")) for row in rows}
    kinds = product(options.shapes, options.shares, options.spreads, options.sides)
    tasks = [
        task
        for seed, (shape, share, spread, side) in product(range(options.seeds), list(kinds))
        if (task := (side, shape, share, spread, seed)) not in done
    ]
    run_all(search, tasks, rows, jobs=options.jobs, out=options.out)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
