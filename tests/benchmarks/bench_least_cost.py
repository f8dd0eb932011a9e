"""What `goal: {minimise: cost}` is worth, over numbers of devices or types of device.

    python tests/benchmarks/bench_least_cost.py --seeds 8 --jobs 1
    python tests/benchmarks/bench_least_cost.py --over types --seeds 8 --jobs 1

Searches by time and by cost of synthetic recipes of fixed length, whose runs differ by a standard
deviation of one point, with so many longest runs as budget (`--budget-runs`) and 4 workers: on one
device or two, which are 1.5 times as fast, or on a type of device that is three times as fast as
another and costs five times as much an hour. Printed is the true expected cost and time of what
each recommends, by 400 further runs, as ratios of the search by cost to that by time on the same
seed: their geometric means with 95 % intervals (Student's t of the logarithms), and where it
trains.
"""

import argparse
import math
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1] / "helpers")]

from several_devices import SeveralDevices, SeveralTypes  # noqa: E402

from tune_speed.core.stats import mean_interval  # noqa: E402
from tune_speed.tuning.simulation.noisy import Noisy  # noqa: E402
from tune_speed.tuning.simulation.simulate import simulate  # noqa: E402
from tune_speed.tuning.simulation.synthetic import Synthetic  # noqa: E402

OVER = {"devices": SeveralDevices, "types": SeveralTypes}
Found = tuple[str, float, float]
"""Devices, expected time [s] and expected cost of what was recommended."""


def search(task: tuple[int, bool, float, str]) -> Found | None:
    seed, by_cost, budget_runs, over = task
    base = Noisy(Synthetic(0.04, "fixed_length", seed), 0.01, seed=seed)
    benchmark = OVER[over](base, by_cost=by_cost)
    budget_s = budget_runs * benchmark.full_run_s / 4
    trace = simulate("time_to_target", benchmark, num_workers=4, budget_s=budget_s, seed=seed)
    if trace.recommended is None:
        return None
    time_s = base.truth(benchmark.alone(trace.recommended))[1] / benchmark.speed(trace.recommended)
    chosen = str(trace.recommended[benchmark.parameter])
    return chosen, time_s, time_s * benchmark.price_per_s(trace.recommended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budget-runs", type=float, default=5.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--over", choices=OVER, default="devices")
    options = parser.parse_args()
    rest = options.budget_runs, options.over
    tasks = [(s, c, *rest) for s in range(options.seeds) for c in (False, True)]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = list(pool.map(search, tasks))
    pairs = [(a, b) for a, b in zip(found[::2], found[1::2], strict=True) if a and b]
    for by, own in zip(("time", "cost"), zip(*pairs, strict=True), strict=True):
        print(f"by {by}: on {dict(Counter(each[0] for each in own))}")
    for name, place in (("time", 1), ("cost", 2)):
        mean = mean_interval([math.log(b[place] / a[place]) for a, b in pairs], is_share=False)
        low, high = (
            math.exp(end) if end is not None else math.nan for end in (mean.low, mean.high)
        )
        ratio = f"{math.exp(mean.mean):.2f} ({low:.2f}-{high:.2f})"
        print(f"expected {name}, by cost / by time: {ratio}, n = {len(pairs)}")


if __name__ == "__main__":
    main()
