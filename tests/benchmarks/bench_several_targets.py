"""One search for three targets at two thirds of the budget, or three searches of a third each.

    python tests/benchmarks/bench_several_targets.py --seeds 3 --budget 30 --jobs 1

The targets are those that 25 %, 10 % and 4 % of random configurations of the synthetic family meet
(`simulation/noisy.py`; runs of one configuration differ by 1 point). `together`: `SeveralTargets`
with two thirds of the budget, in full runs' worth. `apart`: for each target a `time_to_target`
search with a third. Both with 4 workers in virtual time. Printed for each mode, target and side:
the true expected time with restarts of what it recommends there, from 400 runs that no search sees,
over the best that any search of any seed has recommended there (geometric mean over seeds; a search
that recommends nothing counts with a full run over the chance of 1 %), together / apart with its
95 % interval over seeds (Student's t on logarithms), and in how many seeds one of them was at least
as good as the other. Searches whose rows are in `--out` do not run again.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Each search is a process.

import numpy as np
from kept_rows import Row, read_rows, run_all

from tune_speed.core.stats import mean_interval
from tune_speed.tuning.simulation.noisy import Noisy
from tune_speed.tuning.simulation.simulate import new_policy, run_policy
from tune_speed.tuning.simulation.synthetic import Synthetic

SHARES = (0.04, 0.10, 0.25)
"""Of random configurations that meet a target, the hardest first."""
SPREAD, WORKERS, NEVER = 0.01, 4, 100.0


class Several(Noisy):
    """A noisy benchmark with lower targets."""

    @property
    def lower(self) -> tuple[float, ...]:
        return tuple(Synthetic(share, self.mode).target for share in SHARES[1:])


def search(task: tuple[str, str, int, float]) -> list[Row]:
    """Returns what a side recommends at each target; `apart` searches for each."""
    side, mode, seed, budget = task
    singles = [Noisy(Synthetic(share, mode), SPREAD, seed=seed) for share in SHARES]  # type: ignore[arg-type]
    full_s, began_s = singles[0].full_run_s, time.perf_counter()
    if side == "together":
        several = Several(singles[0].base, SPREAD, seed=seed)
        trace = run_policy(
            new_policy("time_to_target", several, seed),
            several,
            num_workers=WORKERS,
            budget_s=budget * 2 / 3 * full_s / WORKERS,
        )
        found = [trace.recommended, *trace.recommended_lower]
    else:
        traces = [
            run_policy(
                new_policy("time_to_target", single, seed),
                single,
                num_workers=WORKERS,
                budget_s=budget / 3 * full_s / WORKERS,
            )
            for single in singles
        ]
        found = [trace.recommended for trace in traces]
    took_s = time.perf_counter() - began_s
    rows = []
    for share, single, params in zip(SHARES, singles, found, strict=True):
        true_s = math.inf if params is None else single.truth(params)[1]
        true_s = min(true_s, NEVER * full_s)
        rows.append({"share": share, "true_s": true_s, "none": params is None})
    head = {"side": side, "mode": mode, "seed": seed, "took_s": took_s}
    return [head | row for row in rows]


def report(rows: list[Row]) -> Iterator[str]:
    for mode in dict.fromkeys(row["mode"] for row in rows):
        for share in SHARES:
            own = [row for row in rows if row["mode"] == mode and row["share"] == share]
            best_s = min(row["true_s"] for row in own)
            by = {(row["side"], row["seed"]): row["true_s"] / best_s for row in own}
            seeds = [seed for side, seed in by if side == "together" and ("apart", seed) in by]
            if not seeds:
                continue
            together, apart = (
                np.array([by[side, seed] for seed in seeds]) for side in ("together", "apart")
            )
            means = [math.exp(np.log(each).mean()) for each in (together, apart)]
            ratio = mean_interval(np.log(together / apart).tolist())
            ends = [math.exp(end) for end in (ratio.low, ratio.high) if end is not None]
            interval = f" ({ends[0]:.2f}–{ends[1]:.2f})" if ends else ""
            yield (
                f"{mode:13} met by {share:4.0%}: together {means[0]:.2f}, apart {means[1]:.2f}"
                f" times the best; ratio {math.exp(ratio.mean):.2f}{interval}; together as good"
                f" in {(together <= apart).sum()} of {len(seeds)} seeds"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=30.0, help="full runs' worth, of three")
    parser.add_argument("--modes", nargs="+", default=["fixed_length", "anytime"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="rows as JSON; searches that are there do not run")
    args = parser.parse_args()
    rows = read_rows(args.out)
    done = {(row["side"], row["mode"], row["seed"]) for row in rows}
    tasks = [
        (side, mode, seed, args.budget)
        for seed in range(args.seeds)
        for mode in args.modes
        for side in ("together", "apart")
        if (side, mode, seed) not in done
    ]
    run_all(search, tasks, rows, jobs=args.jobs, out=args.out)
    print(*report(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
