"""Whether the intervals of a search's forecast hold what comes of it.

    python tests/benchmarks/bench_forecast.py --seeds 20 --jobs 2 --out forecast.jsonl

Searches with 10 full runs' worth and 4 workers, over real recorded runs, synthetic benchmarks with
and without luck, of fixed and free length, and a synthetic zoo, each seed another optimum or order,
are recorded in virtual time: for a target out of reach, and for one that few configurations meet
(one in 200 or 2,000; of recorded runs, the one or two best). They are cut after 25, 50 and 75 % of
the budget, if no run has met the target by then.

Printed for each benchmark: the share of 80 % intervals that hold the best end of any run, where the
target is out of reach (a search that met it turns to speed); where it is not, the mean chance that
was given to a hit, the share of cuts before one, and the share of intervals that hold its time
(never counts as infinite), and how many should at least: more than 80 % where never alone has more.
Constants of a benchmark's forecasts are those by which the searches of the others are likeliest, of
other seeds where the file has such. Last come those of all, which `core/forecast.py` has.
"""

import argparse
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # Each search is a process.

import numpy as np
from bench_noisy_search import ours
from scipy.optimize import minimize

from tune_speed.core.forecast import FINEST, LEAST_RUNS, Law, Range
from tune_speed.core.records import Status
from tune_speed.tuning.policy.base import Outcome
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.policy.settings import Parts
from tune_speed.tuning.simulation.noisy import Noisy
from tune_speed.tuning.simulation.recorded import RecordedBenchmark
from tune_speed.tuning.simulation.simulate import run_policy
from tune_speed.tuning.simulation.synthetic import Synthetic
from tune_speed.tuning.simulation.zoo import Zoo

BUDGET_RUNS, WORKERS = 10.0, 4
CUTS = (0.25, 0.5, 0.75)
# More cuts, and ends before the budget's, for the constants: r is 1/3, 1 and 3 early and late.
LEARNED = [
    (cut, cut * f) for cut in (0.1, 0.15, 0.25, 0.35, 0.5, 0.65, 0.75) for f in (4 / 3, 2, 4)
]
LEVELS = (0.6, 0.65, 0.7, 0.75, 0.8)
SPREADS = (0.002, 0.005, 0.01)
OUT_OF_REACH = 0.98
"""The best of synthetic configurations has 0.96."""


class Aimed:
    """A benchmark with another target."""

    def __init__(self, base: Any, target: float) -> None:
        self.base, self.target = base, target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)


def recorded(file: str, is_far: bool, seed: int) -> Any:
    found = RecordedBenchmark.load(Path(__file__).parent / "data" / file).fresh(seed)
    ends = np.unique([run.curve.metric[-1] for run in found.runs if run.is_done])
    ends = ends[np.isfinite(ends)]
    between = ends[-3:-1] if seed % 2 else ends[-2:]
    return Aimed(found, float(ends[-1] + 0.003 if is_far else between.mean()))


def synthetic(mode: Any, is_noisy: bool, is_far: bool, seed: int) -> Any:
    base: Any = Synthetic(0.0005 if seed % 2 else 0.005, mode, seed)
    base = Aimed(base, OUT_OF_REACH) if is_far else base
    return Noisy(base, SPREADS[seed % 3], seed=seed) if is_noisy else base


def zoo(is_far: bool, seed: int) -> Any:
    found = Zoo(0.0005 if seed % 2 else 0.005, seed)
    return Aimed(found, OUT_OF_REACH) if is_far else found


BENCHMARKS: dict[str, Callable[[bool, int], Any]] = {
    "digits": lambda far, seed: recorded("digits_one_cycle.parquet", far, seed),
    "cifar": lambda far, seed: recorded("cifar10_jpeg_subset.parquet", far, seed),
    "noisy-fixed": lambda far, seed: synthetic("fixed_length", True, far, seed),
    "noisy-any": lambda far, seed: synthetic("anytime", True, far, seed),
    "exact-fixed": lambda far, seed: synthetic("fixed_length", False, far, seed),
    "exact-any": lambda far, seed: synthetic("anytime", False, far, seed),
    "zoo": zoo,
}


class Cut(NamedTuple):
    """A search at a cut, and what came of it."""

    kind: str
    far: bool
    cut: float
    ratio: float
    """What is left of the budget over what was spent."""
    to_do: float
    """log of the best error over the target's."""
    fall: float
    """log of the best error over the last one."""
    hit: float
    """Of the first hit, time from the cut over time before it; infinite: none."""


def record(task: tuple[str, bool, int]) -> dict[str, Any]:
    """Returns a whole search: the target, and of each trial when it ended, how, and its metric."""
    kind, is_far, seed = task
    hush_optuna()
    benchmark = BENCHMARKS[kind](is_far, seed)
    policy, outcomes = ours(benchmark, seed, parts=Parts()), dict[str, Outcome]()
    finish = policy.finish

    def noting(trial_id: str, outcome: Outcome) -> None:
        outcomes[trial_id] = outcome
        finish(trial_id, outcome)

    policy.finish = noting  # type: ignore[method-assign]
    budget_s = BUDGET_RUNS * benchmark.full_run_s / WORKERS
    trace = run_policy(policy, benchmark, num_workers=WORKERS, budget_s=budget_s)
    trials = [
        [trial.ended_s / budget_s, trial.status.value, end_of(outcomes[trial.trial_id], benchmark)]
        for trial in trace.trials
    ]
    row = {"kind": kind, "far": is_far, "seed": seed, "target": benchmark.target}
    return {**row, "trials": trials}


def end_of(outcome: Outcome, benchmark: Any) -> float | None:
    """Returns the last metric of a run that counts, as `core.forecast.Outlook` has it."""
    counts = outcome.status in (Status.REACHED, Status.MISSED)
    counts |= outcome.status == Status.CAPPED and benchmark.mode == "anytime"
    end = float(outcome.curve.metric[-1]) if len(outcome.curve.metric) else math.nan
    return end if counts and math.isfinite(end) else None


def cut_of(row: dict[str, Any], cut: float, until: float = 1.0) -> Cut | None:
    """Returns a search at a cut; None after a hit, or where too few runs went to their end."""
    hit = min((t for t, status, _ in row["trials"] if status == "reached"), default=math.inf)
    ends = [(t, 1 - end + FINEST) for t, _, end in row["trials"] if end is not None and t <= until]
    before = [error for t, error in ends if t <= cut]
    if hit <= cut or until > 1.0 or len(before) < LEAST_RUNS:
        return None
    best, target = min(before), 1 - row["target"] + FINEST
    return Cut(
        row["kind"],
        row["far"],
        cut,
        until / cut - 1,
        math.log(best / max(target, FINEST / 2)),
        math.log(best / min(error for _, error in ends)),
        hit / cut - 1 if hit <= until else math.inf,
    )


def learned(cuts: Sequence[Cut]) -> Law:
    """Returns the constants of the largest likelihood; each benchmark and aim counts the same."""
    numbers = Counter((each.kind, each.far) for each in cuts)
    weight = np.array([1 / (20 + numbers[each.kind, each.far]) for each in cuts])
    log_ratio = np.log([each.ratio for each in cuts])
    is_hit = np.array([math.isfinite(each.hit) for each in cuts])
    # After a hit, a search turns to speed: how far the error would have fallen is not known.
    fall = np.array([each.to_do if math.isfinite(each.hit) else each.fall for each in cuts])

    def loss(w: np.ndarray) -> float:
        none = w[0] + w[1] * log_ratio
        odds = none - fall / math.exp(w[2])
        density = odds - 2 * np.logaddexp(0, odds) - w[2]
        at_least = odds - np.logaddexp(0, odds)
        found = np.where(is_hit, at_least, np.where(fall > 0, density, -np.logaddexp(0, none)))
        return -float((weight * found).sum() / weight.sum())

    w = minimize(loss, (1.2, 1.3, -1.8), method="Nelder-Mead").x
    law = Law(math.exp(w[0]), float(w[1]), math.exp(w[2]), 0.8)
    own = [each for each in cuts if each.far and each.cut in CUTS]
    return min(
        (law._replace(level=level) for level in LEVELS), key=lambda e: abs(held(e, own) - 0.8)
    )


def held(law: Law, cuts: Sequence[Cut]) -> float:
    """Returns the share of intervals of the best error that hold it."""
    return float(np.mean([_holds(law.falls(each.ratio), each.fall) for each in cuts]))


def _holds(interval: Range, value: float) -> bool:
    return interval.low - 1e-9 <= value <= interval.high + 1e-9


def table(rows: list[dict[str, Any]], seeds: range) -> Iterator[str]:
    yield (
        "| searches | holds the best end (cuts) | n | chance given | met | holds the first hit"
        " (cuts) | at least | n |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    own = [row for row in rows if row["seed"] in seeds]
    others = [row for row in rows if row["seed"] not in seeds] or own
    every = [found for row in others for cut in LEARNED if (found := cut_of(row, *cut))]
    judged = [found for row in own for cut in CUTS if (found := cut_of(row, cut))]
    laws = {k: learned([each for each in every if each.kind != k]) for k in BENCHMARKS}
    for label, kinds in [*((kind, [kind]) for kind in BENCHMARKS), ("all", list(BENCHMARKS))]:
        cuts = [(each, laws[each.kind]) for each in judged if each.kind in kinds]
        far = [(c, _holds(law.falls(c.ratio), c.fall)) for c, law in cuts if c.far]
        near = [(c, law) for c, law in cuts if not c.far]
        hits = [(c, _holds(law.ratios(c.to_do, c.ratio), c.hit)) for c, law in near]
        chances = [law.chance(c.to_do, c.ratio) for c, law in near]
        met = np.mean([math.isfinite(c.hit) for c, _ in near])
        least = np.mean([max(1 - chance, 0.8) for chance in chances])
        yield (
            f"| {label} | {_by_cut(far)} | {len(far)} | {np.mean(chances):.0%} | {met:.0%}"
            f" | {_by_cut(hits)} | {least:.0%} | {len(near)} |"
        )
    yield f"\nof all: {learned(every)}"


def _by_cut(found: list[tuple[Cut, bool]]) -> str:
    shares = [[holds for c, holds in found if c.cut == cut] for cut in CUTS]
    cuts = ", ".join(f"{100 * np.mean(share):.0f}" if share else "–" for share in shares)
    return f"{np.mean([holds for _, holds in found]):.0%} ({cuts})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="searches, a line each")
    options = parser.parse_args()
    text = options.out.read_text() if options.out.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    seeds = range(options.first, options.first + options.seeds)
    done = {(row["kind"], row["far"], row["seed"]) for row in rows}
    every = [(kind, far, seed) for seed in seeds for kind in BENCHMARKS for far in (True, False)]
    tasks = [task for task in every if task not in done]
    with ProcessPoolExecutor(options.jobs) as pool, options.out.open("a") as file:
        for row in pool.map(record, tasks):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    print("\n".join(table(rows, seeds)))


if __name__ == "__main__":
    main()
