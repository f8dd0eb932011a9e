"""Whether the intervals of a search's forecast hold what comes of it.

    python tests/benchmarks/bench_forecast.py --seeds 8 --out forecast.jsonl
    python tests/benchmarks/bench_forecast.py --first 8 --seeds 6 --out forecast.jsonl

Searches with 5, 10, 20 and 30 full runs' worth and 4 workers, over real recorded runs, synthetic
benchmarks with and without luck, of fixed and free length, and a synthetic zoo, each seed another
optimum or order, are recorded in virtual time: for a target out of reach, and for one that few
configurations meet (one in 200 or 2,000; of recorded runs, the one or two best). They are cut after
10, 25, 50 and 75 % of the budget, if no run has met the target by then.

Printed are for each benchmark and for each budget the share of 80 % intervals that hold the best
end of any run, where the target is out of reach (a search that met it turns to speed); where it is
not, the mean chance that was given to a hit, the share of cuts before one, and the share of
intervals that hold its time (never counts as infinite), and how many should at least: more than
80 % where never alone has more. Totals are of the cuts from 25 % on, and so are chances and hits.
Constants of a benchmark's forecasts are those by which the searches of the others are likeliest, of
other seeds where the file has such. Last come those of all, which `core/forecast.py` has. `--law
constant` fits none for how far a search has come; `--law built` takes those of `core/forecast.py`.
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

from tune_speed.core.forecast import CHECKED_RATIO, FINEST, LAW, LEAST_RUNS, Law, Range
from tune_speed.core.records import Status
from tune_speed.tuning.policy.base import Outcome
from tune_speed.tuning.policy.samplers import hush_optuna
from tune_speed.tuning.policy.settings import Parts
from tune_speed.tuning.simulation.recorded import RecordedBenchmark
from tune_speed.tuning.simulation.simulate import run_policy
from tune_speed.tuning.simulation.synthetic import Noisy, Synthetic, Zoo

BUDGETS, WORKERS = (5.0, 10.0, 20.0, 30.0), 4
"""Full runs' worth: `full_run_s` times this is what the workers have together."""
CUTS = (0.1, 0.25, 0.5, 0.75)
LEVELS = (0.65, 0.7, 0.725, 0.75, 0.775, 0.8, 0.85)
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
    budget: float
    cut: float
    runs: int
    """Those that went to their end."""
    worth: float
    """Training time of all trials over that of the longest."""
    to_do: float
    """log of the best error over the target's."""
    fall: float
    """log of the best error over the last one."""
    hit: float
    """Of the first hit, time from the cut over time before it; infinite: none."""

    @property
    def ratio(self) -> float:
        """What is left of the budget over what was spent."""
        return 1 / self.cut - 1


def record(task: tuple[str, bool, int]) -> dict[str, Any]:
    """Returns a search of the largest budget: the target, and of each trial four things.

    When it ended, in full runs' worth of the search, how, its metric, and its training time in full
    runs. Until the first hit a search heeds no budget, so that shorter ones are its beginning.
    """
    kind, is_far, seed = task
    hush_optuna()
    benchmark = BENCHMARKS[kind](is_far, seed)
    policy, outcomes = ours(benchmark, seed, parts=Parts()), dict[str, Outcome]()
    finish = policy.finish

    def noting(trial_id: str, outcome: Outcome) -> None:
        outcomes[trial_id] = outcome
        finish(trial_id, outcome)
        if outcome.status == Status.REACHED:
            policy.ask = lambda: None  # type: ignore[method-assign]

    policy.finish = noting  # type: ignore[method-assign]
    full_s = benchmark.full_run_s
    budget_s = max(BUDGETS) * full_s / WORKERS
    trace = run_policy(policy, benchmark, num_workers=WORKERS, budget_s=budget_s)
    trials = [
        [
            trial.ended_s * WORKERS / full_s,
            trial.status.value,
            end_of(outcomes[trial.trial_id], benchmark),
            trial.train_s / full_s,
        ]
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


def cuts_of(rows: Sequence[dict[str, Any]]) -> list[Cut]:
    """Returns each search at each cut of each budget, where it can be forecast."""
    every = (cut_of(row, budget, cut) for row in rows for budget in BUDGETS for cut in CUTS)
    return [found for found in every if found]


def cut_of(row: dict[str, Any], budget: float, cut: float) -> Cut | None:
    """Returns a search at a cut; None after a hit, or where too few runs went to their end."""
    at = cut * budget
    trials = [trial for trial in row["trials"] if trial[0] <= budget]
    hit = min((t for t, status, *_ in trials if status == "reached"), default=math.inf)
    ends = [(t, 1 - end + FINEST) for t, _, end, _ in trials if end is not None]
    before = [error for t, error in ends if t <= at]
    if hit <= at or len(before) < LEAST_RUNS:
        return None
    spent = [train for t, _, _, train in trials if t <= at]
    best, target = min(before), 1 - row["target"] + FINEST
    return Cut(
        kind=row["kind"],
        far=row["far"],
        budget=budget,
        cut=cut,
        runs=len(before),
        worth=sum(spent) / max(spent),
        to_do=math.log(best / max(target, FINEST / 2)),
        fall=math.log(best / min(error for _, error in ends)),
        hit=hit / at - 1,
    )


def learned(cuts: Sequence[Cut], is_constant: bool = False) -> Law:
    """Returns the constants of the largest likelihood; each benchmark and aim counts the same."""
    numbers = Counter((each.kind, each.far) for each in cuts)
    weight = np.array([1 / (20 + numbers[each.kind, each.far]) for each in cuts])
    log_ratio, log_worth, log_runs = np.log([(c.ratio, c.worth, c.runs) for c in cuts]).T
    is_hit = np.array([math.isfinite(each.hit) for each in cuts])
    # After a hit, a search turns to speed: how far the error would have fallen is not known.
    fall = np.array([each.to_do if math.isfinite(each.hit) else each.fall for each in cuts])

    def loss(w: np.ndarray) -> float:
        by_worth, by_runs = (0.0, 0.0) if is_constant else w[3:]
        none = w[0] + w[1] * log_ratio - by_worth * log_worth
        log_spread = w[2] - by_runs * log_runs
        odds = none - fall / np.exp(log_spread)
        density = odds - 2 * np.logaddexp(0, odds) - log_spread
        at_least = odds - np.logaddexp(0, odds)
        found = np.where(is_hit, at_least, np.where(fall > 0, density, -np.logaddexp(0, none)))
        return -float((weight * found).sum() / weight.sum())

    start = (1.2, 1.3, -1.8) if is_constant else (2.5, 1.1, -0.9, 0.8, 0.3)
    w = [*minimize(loss, start, method="BFGS").x, 0.0, 0.0]
    odds, spread = math.exp(w[0]), math.exp(w[2])
    law = Law(odds, float(w[1]), spread, 0.8, float(w[3]), float(w[4]))
    own = [each for each in cuts if each.far and each.ratio <= CHECKED_RATIO]
    return min(
        (law._replace(level=level) for level in LEVELS), key=lambda e: abs(held(e, own) - 0.8)
    )


def held(law: Law, cuts: Sequence[Cut]) -> float:
    """Returns the share of intervals of the best error that hold it."""
    return float(np.mean([_holds_end(law, each) for each in cuts]))


def _holds_end(law: Law, cut: Cut) -> bool:
    return _holds(law.at(cut.worth, cut.runs).falls(cut.ratio), cut.fall)


def _holds(interval: Range, value: float) -> bool:
    return interval.low - 1e-9 <= value <= interval.high + 1e-9


def table(rows: list[dict[str, Any]], seeds: range, which: str) -> Iterator[str]:
    yield (
        "| searches | holds the best end (cuts) | n | chance given | met | holds the first hit"
        " (cuts) | at least | n |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    own = [row for row in rows if row["seed"] in seeds]
    every = cuts_of([row for row in rows if row["seed"] not in seeds] or own)
    is_constant = which == "constant"
    others = {kind: [each for each in every if each.kind != kind] for kind in BENCHMARKS}
    laws = {k: LAW if which == "built" else learned(c, is_constant) for k, c in others.items()}
    judged = [(each, laws[each.kind]) for each in cuts_of(own)]
    for kind in BENCHMARKS:
        yield _line(kind, [(each, law) for each, law in judged if each.kind == kind])
    for budget in BUDGETS:
        cuts = [(each, law) for each, law in judged if each.budget == budget]
        yield _line(f"{budget:g} full runs' worth", cuts)
    yield _line("all", judged)
    yield f"\nof all: {learned(every, is_constant)}"


def _line(label: str, cuts: Sequence[tuple[Cut, Law]]) -> str:
    far = [(c, _holds_end(law, c)) for c, law in cuts if c.far]
    near = [(c, law.at(c.worth, c.runs)) for c, law in cuts if not c.far]
    hits = [(c, _holds(law.ratios(c.to_do, c.ratio), c.hit)) for c, law in near]
    near = [(c, law) for c, law in near if c.ratio <= CHECKED_RATIO]
    chances = [law.chance(c.to_do, c.ratio) for c, law in near]
    met = np.mean([math.isfinite(c.hit) for c, _ in near])
    least = np.mean([max(1 - chance, 0.8) for chance in chances])
    return (
        f"| {label} | {_by_cut(far)} | {np.mean(chances):.0%} | {met:.0%}"
        f" | {_by_cut(hits, f'{least:.0%} | ')} |"
    )


def _by_cut(found: list[tuple[Cut, bool]], before: str = "") -> str:
    """Returns `80% (70, 79, 81, 80) | 120`: a share, the shares of the cuts, and how many."""
    shares = [[holds for c, holds in found if c.cut == cut] for cut in CUTS]
    cuts = ", ".join(f"{100 * np.mean(share):.0f}" if share else "–" for share in shares)
    counted = [holds for c, holds in found if c.ratio <= CHECKED_RATIO]
    return f"{np.mean(counted):.0%} ({cuts}) | {before}{len(counted)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--law", choices=("learned", "constant", "built"), default="learned")
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
    print("\n".join(table(rows, seeds, options.law)))


if __name__ == "__main__":
    main()
