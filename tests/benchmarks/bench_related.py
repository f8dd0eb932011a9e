"""How soon a search meets its target for the first time, that begins with studies of related tasks.

    python tests/benchmarks/bench_related.py --seeds 10 --jobs 2 --out related.json

Five tasks of `Synthetic` (fixed length, 4 % of configurations meet the target, runs differ by half
a point), whose best rates, decays, schedules and largest batches differ, are searched with ten full
runs' worth each; then a sixth: without them (`cold`), with them (`related`), and with five whose
best rates lie at the other end of the range (`misleading`). 4 workers. Printed: the virtual time
until the first hit over that of `cold` (geometric mean, worst), and how often it was longer.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_noisy_search import WORKERS, read_rows, run_all

from tune_speed.core.records import Status
from tune_speed.tuning.policy.base import Cost, Outcome, PriorTrial, Problem, SearchTarget
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.policy.time_to_target import TimeToTarget
from tune_speed.tuning.simulation.simulate import Trace, run_policy
from tune_speed.tuning.simulation.synthetic import TREE, Noisy, Synthetic

SIDES = ("cold", "related", "misleading")
NUM_TASKS = 5
SHARE, SPREAD = 0.04, 0.005
SEARCH_RUNS, FIRST_RUNS = 10.0, 20.0
"""Budgets in full runs' worth: of the studies that are learned from, and until a first hit."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Mirrored(Synthetic):
    """As `Synthetic`, but its best rates lie where the range of rates ends that `Synthetic`'s begin
    at."""

    def curve(self, params: Mapping[str, Any]) -> Curve:
        name = f"optimizer.{params['optimizer']}.lr"
        ends = TREE["optimizer"]["choices"][params["optimizer"]]["lr"]
        rate = ends["low"] * ends["high"] / params[name]
        return super().curve({**params, name: rate})


class Recorded(TimeToTarget):
    """A search whose finished trials are kept."""

    def __init__(self, problem: Problem, *, task: str, prior: Sequence[PriorTrial] = ()) -> None:
        super().__init__(problem, prior_trials=prior)
        self.task, self.kept = task, list[PriorTrial]()
        self.is_over = False

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        params = self._history.running[trial_id].proposal.params
        self.kept.append(PriorTrial(params, outcome, False, self.task))
        super().finish(trial_id, outcome)

    def ask(self, number: int | None = None) -> Any:
        """Returns nothing once the first hit is all that was asked for."""
        return None if self.is_over and self.leader else super().ask(number)


def search(
    task: Synthetic,
    *,
    seed: int,
    runs: float,
    prior: Sequence[PriorTrial] = (),
    first: bool = False,
) -> tuple[Recorded, Trace]:
    benchmark = Noisy(task, SPREAD, seed=seed)
    target = SearchTarget(benchmark.target, benchmark.mode, math.inf)
    cost_of = lambda params: Cost(benchmark.predicted_cost(params))  # noqa: E731
    problem = Problem(benchmark.space, target, cost_of, seed)
    policy = Recorded(problem, task=f"{type(task).__name__}-{task.seed}", prior=prior)
    policy.is_over = first
    budget_s = runs * benchmark.full_run_s / WORKERS
    return policy, run_policy(policy, benchmark, num_workers=WORKERS, budget_s=budget_s)


def of_group(seed: int) -> list[Row]:
    """Returns a row for each side of one group of tasks."""
    hush_optuna()
    sixth, first = Synthetic(SHARE, "fixed_length", 100 * seed + NUM_TASKS + 1), 100 * seed + 1
    priors: dict[str, list[PriorTrial]] = {"cold": []}
    for side, kind in (("related", Synthetic), ("misleading", Mirrored)):
        tasks = [kind(SHARE, "fixed_length", first + i) for i in range(NUM_TASKS)]
        found = (search(task, seed=seed, runs=SEARCH_RUNS)[0].kept for task in tasks)
        priors[side] = [trial for kept in found for trial in kept]
    return [
        {"seed": seed, "side": side, "first_s": _first_s(sixth, seed, priors[side])}
        for side in SIDES
    ]


def _first_s(task: Synthetic, seed: int, prior: Sequence[PriorTrial]) -> float:
    _, trace = search(task, seed=seed, runs=FIRST_RUNS, prior=prior, first=True)
    hits = [trial.ended_s for trial in trace.trials if trial.status == Status.REACHED]
    return min(hits, default=FIRST_RUNS * task.full_run_s / WORKERS)


def table(rows: list[Row]) -> Iterator[str]:
    yield "| side | first hit, over cold: mean | worst | longer | n |"
    yield "|---|---:|---:|---:|---:|"
    cold = {row["seed"]: row["first_s"] for row in rows if row["side"] == "cold"}
    for side in SIDES[1:]:
        own = [row for row in rows if row["side"] == side]
        ratios = np.array([row["first_s"] / cold[row["seed"]] for row in own])
        mean = math.exp(np.log(ratios).mean())
        yield f"| {side} | {mean:.2f} | {ratios.max():.2f} | {sum(ratios > 1.1)} | {len(own)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="rows as JSON; groups that are there do not run")
    options = parser.parse_args()
    rows = read_rows(options.out)
    done = {row["seed"] for row in rows}
    seeds = [seed for seed in range(options.seeds) if seed not in done]
    run_all(of_group, seeds, rows, jobs=options.jobs, out=options.out)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
