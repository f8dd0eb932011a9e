"""What `goal: {minimise: cost}` is worth, where two devices are 1.5 times as fast as one.

    python tests/benchmarks/bench_least_cost.py --seeds 8 --jobs 1

Searches by time and by cost of synthetic recipes of fixed length, whose runs differ by a standard
deviation of one point, on one device or two, with so many longest runs as budget (`--budget-runs`)
and 4 workers. Printed is the true expected cost and time of what each recommends, by 400 further
runs, as ratios of the search by cost to that by time on the same seed: their geometric means with
95 % intervals (Student's t of the logarithms), and on how many devices it trains.
"""

import argparse
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1] / "helpers")]

from several_devices import PRICE, SPEEDUP, SeveralDevices  # noqa: E402

from tune_speed.core.stats import mean_interval  # noqa: E402
from tune_speed.tuning.simulation.noisy import Noisy  # noqa: E402
from tune_speed.tuning.simulation.simulate import simulate  # noqa: E402
from tune_speed.tuning.simulation.synthetic import Synthetic  # noqa: E402

Found = tuple[int, float, float]
"""Devices, expected time [s] and expected cost of what was recommended."""


def search(task: tuple[int, bool, float]) -> Found | None:
    seed, by_cost, budget_runs = task
    base = Noisy(Synthetic(0.04, "fixed_length", seed), 0.01, seed=seed)
    benchmark = SeveralDevices(base, by_cost=by_cost)
    budget_s = budget_runs * benchmark.full_run_s / 4
    trace = simulate("time_to_target", benchmark, num_workers=4, budget_s=budget_s, seed=seed)
    if trace.recommended is None:
        return None
    devices = trace.recommended["devices"]
    alone = {k: v for k, v in trace.recommended.items() if k != "devices"}
    time_s = base.truth(alone)[1] / (SPEEDUP if devices == 2 else 1.0)
    return devices, time_s, time_s * devices * PRICE / 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budget-runs", type=float, default=5.0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    tasks = [(s, c, options.budget_runs) for s in range(options.seeds) for c in (False, True)]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = list(pool.map(search, tasks))
    pairs = [(a, b) for a, b in zip(found[::2], found[1::2], strict=True) if a and b]
    for by, own in zip(("time", "cost"), zip(*pairs, strict=True), strict=True):
        print(f"by {by}: on two devices {sum(each[0] == 2 for each in own)} of {len(own)}")
    for name, place in (("time", 1), ("cost", 2)):
        mean = mean_interval([math.log(b[place] / a[place]) for a, b in pairs], is_share=False)
        low, high = (
            math.exp(end) if end is not None else math.nan for end in (mean.low, mean.high)
        )
        ratio = f"{math.exp(mean.mean):.2f} ({low:.2f}-{high:.2f})"
        print(f"expected {name}, by cost / by time: {ratio}, n = {len(pairs)}")


if __name__ == "__main__":
    main()
