"""Whether the intervals of a search's forecast hold what comes of it.

    python tests/benchmarks/bench_forecast.py --seeds 6 --jobs 1 --out forecast.jsonl

Searches with 10 full runs' worth and 4 workers, each of another synthetic benchmark whose runs
differ by luck, are recorded in virtual time, and cut after 25, 50 and 75 % of the budget.
"""

import argparse
import json
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Each search is a process.

from bench_noisy_search import ours

from tune_speed.tuning.policy.base import Outcome
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.policy.settings import Parts
from tune_speed.tuning.simulation.noisy import Noisy
from tune_speed.tuning.simulation.simulate import run_policy
from tune_speed.tuning.simulation.synthetic import Synthetic

BUDGET_RUNS, WORKERS = 10.0, 4
CUTS = (0.25, 0.5, 0.75)


class Kind(NamedTuple):
    """Searches of one kind; each seed is another benchmark."""

    mode: Any
    share: float
    """Of random configurations that meet the target: the last is hardly ever met."""
    spread: float
    """Standard deviation of the metric between runs."""

    def benchmark(self, seed: int) -> Noisy:
        return Noisy(Synthetic(self.share, self.mode, seed), self.spread, seed=seed)


KINDS = [
    Kind(mode, share, spread)
    for mode, share, spread in (
        ("fixed_length", 0.005, 0.005),
        ("fixed_length", 0.0005, 0.01),
        ("anytime", 0.0005, 0.005),
        ("fixed_length", 0.0005, 0.002),
        ("anytime", 0.005, 0.01),
    )
]


def record(task: tuple[int, int]) -> dict[str, Any]:
    """Returns a whole search: its finished trials, and the share of the budget when each ended."""
    number, seed = task
    hush_optuna()
    benchmark = KINDS[number].benchmark(seed)
    policy, outcomes = ours(benchmark, seed, parts=Parts()), dict[str, Outcome]()
    finish = policy.finish

    def noting(trial_id: str, outcome: Outcome) -> None:
        outcomes[trial_id] = outcome
        finish(trial_id, outcome)

    policy.finish = noting  # type: ignore[method-assign]
    budget_s = BUDGET_RUNS * benchmark.full_run_s / WORKERS
    trace = run_policy(policy, benchmark, num_workers=WORKERS, budget_s=budget_s)
    trials = [
        {
            "id": trial.trial_id,
            "params": trial.params,
            "ended": trial.ended_s / budget_s,
            "status": trial.status.value,
            "train_s": outcomes[trial.trial_id].train_s,
            "clock": outcomes[trial.trial_id].curve.train_s.tolist(),
            "metric": [
                None if math.isnan(m) else m for m in outcomes[trial.trial_id].curve.metric.tolist()
            ],
        }
        for trial in trace.trials
    ]
    return {"kind": number, "seed": seed, "trials": trials}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="searches, a line each")
    options = parser.parse_args()
    rows = []
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
    done = {(row["kind"], row["seed"]) for row in rows}
    every = [(number, seed) for seed in range(options.seeds) for number in range(len(KINDS))]
    tasks = [task for task in every if task not in done]
    with ProcessPoolExecutor(options.jobs) as pool, options.out.open("a") as file:
        for number, row in enumerate(pool.map(record, tasks), 1):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{number}/{len(tasks)}", len(row["trials"]), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
