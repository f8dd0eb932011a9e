"""Whether the intervals of `certify` cover the truth, and whether its race keeps the true best.

    python tests/benchmarks/bench_certify.py [--repetitions 1000]    # about 4 minutes on one core

Runs are drawn with a known success rate and log-normal times. A miss takes as long as a hit would
(`fixed_length`) or three times the median hit (`anytime`). Coverage is the share of repetitions in
which the 95 % interval of the expected time with restarts holds the true one, of the textbook's
bootstrap and of ours; beside it that of the interval of the median. "Within reach" is the nearest
to 95 % that any interval comes which goes by the number of hits alone.

Races are of known finalists, some laid out so that a false drop is as likely as can be: the true
best always hits, and its rival is faster by nearly as much as it misses. The share of races in
which the true best is dropped must stay under 5 %; beside it, the share of runs saved.
"""

import argparse
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from tune_speed.core.stats import (
    NUM_DRAWS,
    Sample,
    central,
    expected_time_interval_s,
    median_interval_s,
)
from tune_speed.experiments.certification.elimination import Elimination

NUMS_OF_RUNS = (5, 10, 20, 50)
RATES = (0.5, 0.8, 0.9, 0.95, 1.0, None)
"""Success rates; None draws one between 0.5 and 1 each time."""
SPREADS = (0.01, 0.1, 0.3)
LIMIT_S = 3.0


class Coverage(NamedTuple):
    """Shares of repetitions in which the truth was covered."""

    mode: str
    n: int
    spread: float
    rate: float | None
    textbook: float
    ours: float
    median: float | None


class Finalist(NamedTuple):
    median_s: float
    rate: float = 1.0
    spread: float = 0.01

    def expected_s(self, miss_s: float | None) -> float:
        mean_s = self.median_s * math.exp(self.spread**2 / 2)
        return mean_s + (1 - self.rate) / self.rate * (mean_s if miss_s is None else miss_s)


class Scenario(NamedTuple):
    name: str
    finalists: tuple[Finalist, ...]
    """None given: drawn anew for each race."""
    num_rounds: int = 5
    miss_s: float | None = None
    least_success_rate: float = 0.5


class RaceResult(NamedTuple):
    name: str
    num_finalists: float
    num_rounds: float
    best_dropped: float
    """Share of races."""
    saved: float
    """Mean share of runs."""
    dropped: float
    """Mean number of finalists."""
    median_round: float | None
    """In which they were dropped."""


def near(rounds: int, n: int, spread: float, rate: float) -> Scenario:
    field = tuple(Finalist(1 + 0.01 * i, rate, spread) for i in range(n))
    return Scenario(f"{n} within {n - 1} %, rate {rate}, spread {spread}", field, rounds)


def trap(n: int, spread: float, rate: float) -> Scenario:
    """Returns a sure finalist that is best by 0.5 %, among faster ones that often miss."""
    name = f"sure one of {n} best by 0.5 %, rate {rate:.3g}, spread {spread}"
    field = (Finalist(0.995 / rate, 1.0, spread), *[Finalist(1.0, rate, spread)] * (n - 1))
    return Scenario(name, field, 20)


def lone(slower: float, spread: float, rounds: int, n: int = 2, least: float = 0.5) -> Scenario:
    name = f"one {slower:g}× as slow" if n == 2 else f"{n - 1} {slower:g}× as slow"
    name += f", spread {spread}" + (f", least rate {least}" if least != 0.5 else "")
    field = (Finalist(1.0, 1.0, spread), *[Finalist(slower, 1.0, spread)] * (n - 1))
    return Scenario(name, field, rounds, least_success_rate=least)


def far(spread: float, rate: float) -> Scenario:
    field = tuple(Finalist(time_s, rate, spread) for time_s in (1.0, 1.2, 1.6, 2.4, 4.0))
    return Scenario(f"1, 1.2, 1.6, 2.4, 4 s, rate {rate}, spread {spread}", field)


SCENARIOS = (
    Scenario("random field", ()),
    near(20, 5, 0.01, 0.9),
    near(20, 10, 0.3, 0.9),
    near(20, 2, 0.001, 0.5),
    near(20, 10, 0.001, 0.5),
    *[trap(2, spread, 2 / 3) for spread in (0.001, 0.01, 0.1, 0.3)],
    trap(2, 0.001, 0.5),
    trap(2, 0.3, 0.5),
    trap(2, 0.001, 0.8),
    trap(5, 0.001, 2 / 3),
    trap(10, 0.01, 2 / 3),
    Scenario(
        "equal but for spreads 0.3 and 0.001, rates 0.5 and 1",
        (Finalist(1.0, 0.5, 0.3), Finalist(2.08, 1.0, 0.001)),
        20,
    ),
    Scenario("time limit 10 s, sure one best", (Finalist(5.2), Finalist(1.0, 0.7, 0.1)), 20, 10.0),
    Scenario("time limit 10 s, unsure best", (Finalist(5.4), Finalist(1.0, 0.7, 0.1)), 20, 10.0),
    Scenario("time limit 10 s, coin best", (Finalist(9.4), Finalist(1.0, 0.55, 0.1)), 20, 10.0),
    far(0.01, 1.0),
    far(0.01, 0.9),
    far(0.1, 0.9),
    far(0.3, 0.9),
    lone(1.5, 0.01, 5),
    lone(1.5, 0.01, 20),
    lone(1.5, 0.01, 20, n=5),
    lone(1.5, 0.01, 5, n=5, least=0.75),
    lone(2.2, 0.01, 5, n=5),
    lone(2.5, 0.01, 5, n=5),
    lone(3.0, 0.1, 5),
    Scenario("one without a hit of 2", (Finalist(1.0), Finalist(1.0, 1e-9)), 20),
    Scenario("4 without a hit of 5", (Finalist(1.0), *[Finalist(1.0, 1e-9)] * 4), 20),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    settings = itertools.product(("fixed_length", "anytime"), NUMS_OF_RUNS, SPREADS, RATES)
    coverages = [
        measure_coverage(*setting, repetitions=arguments.repetitions, rng=rng)
        for setting in settings
    ]
    races = [measure_races(scenario, arguments.repetitions, rng) for scenario in SCENARIOS]
    print(f"{arguments.repetitions} repetitions each.")
    print_coverages(coverages)
    print_races(races)


def draw_runs(
    finalist: Finalist, n: int, miss_s: float | None, rng: np.random.Generator
) -> list[Sample]:
    """Returns runs; a miss takes `miss_s`, or as long as a hit would."""
    times_s = finalist.median_s * np.exp(finalist.spread * rng.standard_normal(n))
    hits = rng.random(n) < finalist.rate
    spent_s = times_s if miss_s is None else np.where(hits, times_s, miss_s)
    return list(map(Sample, spent_s.tolist(), hits.tolist()))


def bootstrap_interval_s(runs: Sequence[Sample]) -> tuple[float, float]:
    """Returns the bootstrap percentile interval of the expected time [s]; an end may be infinite.

    The textbook's way: runs are drawn with replacement, and draws without a hit count as infinite.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3.
    """
    spent_s, is_hit = np.array(runs).T
    draws = np.random.default_rng(0).integers(len(runs), size=(NUM_DRAWS, len(runs)))
    with np.errstate(divide="ignore"):
        return central(spent_s[draws].sum(axis=1) / is_hit[draws].sum(axis=1), 0.95)


def measure_coverage(
    mode: str,
    n: int,
    spread: float,
    rate: float | None,
    *,
    repetitions: int,
    rng: np.random.Generator,
) -> Coverage:
    miss_s = LIMIT_S if mode == "anytime" else None
    covered = np.zeros(3)
    for _ in range(repetitions):
        recipe = Finalist(1.0, rng.uniform(0.5, 1.0) if rate is None else rate, spread)
        runs = draw_runs(recipe, n, miss_s, rng)
        truth_s = recipe.expected_s(miss_s)
        textbook = bootstrap_interval_s(runs)
        ours = expected_time_interval_s(runs, miss_s=miss_s)
        median = median_interval_s([run.spent_s if run.is_hit else None for run in runs])
        truths = (truth_s, truth_s, true_median_s(recipe))
        ends = (textbook, ours, median[:2])
        covered += [low <= truth <= high for truth, (low, high) in zip(truths, ends, strict=True)]
    textbook_share, our_share, median_share = (covered / repetitions).tolist()
    # At a rate of one half, whatever is above all hits is a median.
    return Coverage(
        mode, n, spread, rate, textbook_share, our_share, None if rate == 0.5 else median_share
    )


def true_median_s(recipe: Finalist) -> float:
    quantile = min(1.0, 0.5 / recipe.rate)
    if quantile == 1:
        return math.inf
    return recipe.median_s * math.exp(recipe.spread * statistics.NormalDist().inv_cdf(quantile))


def within_reach(n: int, rate: float) -> float:
    """Returns the coverage nearest to 95 % of any run of neighbouring numbers of hits."""
    chances = binom.pmf(range(n + 1), n, rate)
    sums = [chances[i:j].sum() for i, j in itertools.combinations(range(n + 2), 2)]
    return float(min(sums, key=lambda share: abs(share - 0.95)))


def measure_races(scenario: Scenario, repetitions: int, rng: np.random.Generator) -> RaceResult:
    races = [run_race(scenario, rng) for _ in range(repetitions)]
    counts = [(len(race.names), race.num_rounds) for race, _ in races]
    rounds = [dropped.round for race, _ in races for dropped in race.dropped]
    saved = [
        1 - sum(map(len, race.samples.values())) / (n * num_rounds)
        for (race, _), (n, num_rounds) in zip(races, counts, strict=True)
    ]
    return RaceResult(
        scenario.name,
        *np.mean(counts, axis=0).tolist(),
        best_dropped=statistics.fmean(best not in race.alive for race, best in races),
        saved=statistics.fmean(saved),
        dropped=len(rounds) / repetitions,
        median_round=statistics.median(rounds) if rounds else None,
    )


def run_race(scenario: Scenario, rng: np.random.Generator) -> tuple[Elimination, str]:
    finalists, num_rounds = scenario.finalists, scenario.num_rounds
    if not finalists:
        finalists, num_rounds = draw_field(rng)
    names = [f"t{i:04d}" for i in range(len(finalists))]
    race = Elimination(
        names,
        num_rounds=num_rounds,
        least_success_rate=scenario.least_success_rate,
        miss_s=scenario.miss_s,
    )
    by_name = dict(zip(names, finalists, strict=True))
    for _ in range(num_rounds):
        for name in race.alive:
            race.add(name, draw_runs(by_name[name], 1, scenario.miss_s, rng)[0])
        race.close_round()
    return race, min(names, key=lambda name: by_name[name].expected_s(scenario.miss_s))


def draw_field(rng: np.random.Generator) -> tuple[tuple[Finalist, ...], int]:
    """Returns 2 to 10 finalists, close together or far apart, and 5 to 20 rounds."""
    n, num_rounds = rng.integers(2, 11), int(rng.integers(5, 21))
    apart, spread = np.exp(rng.uniform(np.log((0.01, 0.001)), np.log((0.7, 0.3))))
    times_s = np.exp(apart * rng.standard_normal(n))
    rates = np.where(rng.random(n) < 0.3, 1.0, rng.uniform(0.5, 1.0, n))
    finalists = zip(times_s.tolist(), rates.tolist(), strict=True)
    return tuple(Finalist(*finalist, float(spread)) for finalist in finalists), num_rounds


def print_coverages(coverages: Sequence[Coverage]) -> None:
    labels = ["0.5 to 1" if rate is None else f"{rate:g}" for rate in RATES]
    header = f"| n | spread | {' | '.join(labels)} |\n|---|---|{'---|' * len(labels)}"
    for mode, rows in itertools.groupby(coverages, key=lambda row: row.mode):
        print(f"\nExpected time, `{mode}`: coverage [%] of the bootstrap / of ours, by rate\n")
        print(header)
        for (n, spread), cells in itertools.groupby(rows, key=lambda row: (row.n, row.spread)):
            shares = [f"{100 * cell.textbook:.1f} / {100 * cell.ours:.1f}" for cell in cells]
            print(f"| {n} | {spread} | {' | '.join(shares)} |")
    print("\nWithin reach [%] where times do not vary\n")
    print(header.replace(" spread |", "", 1).replace("---|", "", 1))
    for n in NUMS_OF_RUNS:
        reach = ["" if rate is None else f"{100 * within_reach(n, rate):.1f}" for rate in RATES]
        print(f"| {n} | {' | '.join(reach)} |")
    print("\nMedian: coverage [%], all spreads and modes\n")
    print(header.replace(" spread |", " nominal |", 1))
    for n in NUMS_OF_RUNS:
        nominal = median_interval_s([1.0] * n)[2]
        print(f"| {n} | {100 * nominal:.1f} | {' | '.join(median_cells(coverages, n))} |")


def median_cells(coverages: Sequence[Coverage], n: int) -> list[str]:
    cells = []
    for rate in RATES:
        found = [c.median for c in coverages if (c.n, c.rate) == (n, rate) and c.median is not None]
        cells.append(f"{100 * statistics.fmean(found):.1f}" if found else "–")
    return cells


def print_races(races: Sequence[RaceResult]) -> None:
    print("\nRaces: the true best is the one of least expected time\n")
    print("| finalists | number | rounds | true best dropped | runs saved | dropped | in round |")
    print("|---|---|---|---|---|---|---|")
    for race in races:
        median_round = "–" if race.median_round is None else f"{race.median_round:g}"
        print(
            f"| {race.name} | {race.num_finalists:.3g} | {race.num_rounds:.3g} "
            f"| {race.best_dropped:.1%} | {race.saved:.1%} | {race.dropped:.2f} | {median_round} |"
        )


if __name__ == "__main__":
    main()
