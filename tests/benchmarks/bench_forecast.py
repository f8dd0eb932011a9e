"""Whether the intervals of a search's forecast hold what comes of it.

    python tests/benchmarks/bench_forecast.py --first 50 --seeds 10 --jobs 2 --out forecast.jsonl

Searches with 10 full runs' worth and 4 workers, each of another synthetic benchmark whose runs
differ by luck, or over real recorded runs, are recorded in virtual time, and cut after 25, 50 and
75 % of the budget if no run has met the target by then. Printed for each cut: the mean chance that
was given to a hit within the rest of the budget, and the share of searches with one; the share of
intervals (80 %) that hold the time of the first hit (never counts as infinite), and the best end of
any run. Cuts with too few whole runs, at which there is no forecast, are left out.
Constants of `tuning/policy/forecast.py` were set on seeds 0 to 49; judge by others: `--first 50`.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Each search is a process.

import numpy as np
from bench_noisy_search import ours

from tune_speed.core.records import Status
from tune_speed.tuning.policy.base import Outcome, Proposal
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.curve_table import distance, metric_of
from tune_speed.tuning.policy.forecast import Range, range_of
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.policy.settings import Parts
from tune_speed.tuning.simulation.noisy import Noisy
from tune_speed.tuning.simulation.recorded import RecordedBenchmark
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

    @property
    def label(self) -> str:
        return str(self.mode)

    def benchmark(self, seed: int) -> Noisy:
        return Noisy(Synthetic(self.share, self.mode, seed), self.spread, seed=seed)


class Recorded(NamedTuple):
    """Searches over recorded runs, for a target that no run or only three of them meet."""

    file: str
    mode: Any = "fixed_length"

    @property
    def label(self) -> str:
        return self.file

    def benchmark(self, seed: int) -> RecordedBenchmark:
        found = RecordedBenchmark.load(Path(__file__).parent / "data" / self.file).fresh(seed)
        ends = [run.curve.metric[-1] for run in found.runs if run.is_done]
        ends = sorted(end for end in ends if math.isfinite(end))
        found.target = float(ends[-4] + ends[-3]) / 2 if seed % 2 else float(ends[-1]) + 0.003
        return found


KINDS: list[Any] = [
    Kind(mode, share, spread)
    for mode, share, spread in (
        ("fixed_length", 0.005, 0.005),
        ("fixed_length", 0.0005, 0.01),
        ("anytime", 0.0005, 0.005),
        ("fixed_length", 0.0005, 0.002),
        ("anytime", 0.005, 0.01),
    )
]
KINDS += [Recorded("digits_one_cycle.parquet"), Recorded("cifar10_jpeg_subset.parquet")]


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

    policy.finish = noting
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


def cuts_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what was forecast at each cut before the first hit, and what came."""
    hush_optuna()
    kind, never = KINDS[row["kind"]], math.inf
    benchmark = kind.benchmark(row["seed"])
    hit = min((t["ended"] for t in row["trials"] if t["status"] == "reached"), default=never)
    found = []
    for cut in [cut for cut in CUTS if hit > cut]:
        done = [each for each in row["trials"] if each["ended"] <= cut]
        policy = ours(benchmark, row["seed"], parts=Parts())
        done_in_order = sorted(done, key=lambda each: str(each["id"]))
        policy.restore(finished=map(_finished, done_in_order), unfinished=())
        budget_s = BUDGET_RUNS * benchmark.full_run_s
        going = [
            each
            for each in row["trials"]
            if each["ended"] > cut
            and each["clock"]
            and each["ended"] - each["clock"][-1] * WORKERS / budget_s <= cut
        ]
        policy.observe([_finished(t)[0] for t in going], running={t["id"] for t in going})
        left_s = policy.used_s() * (1 - cut) / cut
        paths = policy.forecast(left_s=left_s, left_runs=math.inf)
        if paths is None:
            continue
        first = cut + (1 - cut) * paths.first_hit_s() / left_s
        now, end = _best(done), _best(row["trials"])
        ends = np.maximum(paths.ends.max(axis=1), distance(now, benchmark.target))
        best = metric_of(ends, benchmark.target)
        found.append(
            {
                "kind": kind.label,
                "cut": cut,
                "chance": float(np.isfinite(first).mean()),
                "met": hit < never,
                "holds_hit": _holds(range_of(first), hit),
                "holds_best": _holds(range_of(best), end),
            }
        )
    return found


def _finished(trial: dict[str, Any]) -> tuple[Proposal, Outcome]:
    metric = np.array([math.nan if m is None else m for m in trial["metric"]])
    curve = Curve(np.array(trial["clock"]), metric)
    outcome = Outcome(Status(trial["status"]), trial["train_s"], curve)
    return Proposal(trial["id"], trial["params"]), outcome


def _best(trials: list[dict[str, Any]]) -> float:
    return max((t["metric"][-1] or 0.0 for t in trials if t["metric"]), default=0.0)


def _holds(interval: Range, value: float) -> bool:
    return interval.low - 1e-9 <= value <= interval.high + 1e-9


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    yield "| searches | cut | chance given | met | holds the first hit | holds the best end | n |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for label in dict.fromkeys(each["kind"] for each in found):
        for cuts in [(cut,) for cut in CUTS] + [CUTS]:
            own = [each for each in found if each["kind"] == label and each["cut"] in cuts]
            if not own:
                continue
            means = [
                np.mean([each[what] for each in own])
                for what in ("chance", "met", "holds_hit", "holds_best")
            ]
            cut = "all" if cuts == CUTS else f"{cuts[0]:.0%}"
            shares = " | ".join(f"{mean:.0%}" for mean in means)
            yield f"| {label} | {cut} | {shares} | {len(own)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="searches, a line each")
    options = parser.parse_args()
    rows = []
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
    seeds = range(options.first, options.first + options.seeds)
    done = {(row["kind"], row["seed"]) for row in rows}
    every = [(number, seed) for seed in seeds for number in range(len(KINDS))]
    tasks = [task for task in every if task not in done]
    with ProcessPoolExecutor(options.jobs) as pool, options.out.open("a") as file:
        for number, row in enumerate(pool.map(record, tasks), 1):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{number}/{len(tasks)}", len(row["trials"]), file=sys.stderr, flush=True)
        judged = [row for row in rows if row["seed"] in seeds]
        found = [each for part in pool.map(cuts_of, judged) for each in part]
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
