"""What a search's model says of chances to meet the target, on recorded runs that it has not seen.

    python tests/benchmarks/bench_chances.py

For each table in `data/`: of N random runs the model learns, and says of all others how likely they
met the target. Printed, over 20 draws: the share of the ten most likely that did, beside what the
model said of them; the log loss over all others, in nats; and the root mean square of the errors
within 1.5 of the target over the standard deviations that the model gave them, which is to be 1.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from scipy.special import ndtr

from tune_speed.tuning.policy.acquisition import AcquisitionSettings, Evidence, Model
from tune_speed.tuning.policy.curve import distance
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.simulation.recorded import RecordedBenchmark

TABLES = sorted((Path(__file__).parent / "data").glob("*.parquet"))
SIZES, DRAWS, MOST_LIKELY, NEAR = (15, 30, 60), 20, 10, 1.5


def chances(table: Path, size: int) -> Iterator[tuple[float, float, float, float]]:
    """Yields what each draw gives: share and chance of the most likely, log loss, error."""
    benchmark = RecordedBenchmark.load(table)
    encoder = Encoder(benchmark.space)
    units = np.array([encoder.units(run.params) for run in benchmark.runs])
    costs = np.array([benchmark.predicted_cost(run.params) for run in benchmark.runs])
    finals = [run.curve.metric[-1] if run.is_done else 0.0 for run in benchmark.runs]
    y = distance(np.nan_to_num(finals), benchmark.target)
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        seen, other = np.split(rng.permutation(len(y)), [size])
        evidence = Evidence(
            units=units[seen],
            costs=costs[seen],
            distances=y[seen, None],
            variances=np.zeros(size),
            ranks=y[seen],
            fits=np.ones(size, dtype=bool),
        )
        model = Model(encoder, evidence, has_cost=True, settings=AcquisitionSettings(), rng=rng)
        mean, sd = model.process.predict(model.points(units[other], costs[other]))
        spread = np.hypot(sd, model.process.noise_sd)
        chance = np.clip(ndtr(mean[:, 0] / spread), 1e-6, 1 - 1e-6)
        met, near = y[other] >= 0, y[other] > -NEAR
        best = np.argsort(-chance)[:MOST_LIKELY]
        loss = -np.where(met, np.log(chance), np.log(1 - chance)).mean()
        error = np.sqrt((((y[other] - mean[:, 0]) / spread)[near] ** 2).mean())
        yield float(met[best].mean()), float(chance[best].mean()), float(loss), float(error)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| table | runs seen | ten most likely: met | said | log loss | error |")
    print("|---|---:|---:|---:|---:|---:|")
    for table in TABLES:
        for size in SIZES:
            met, said, loss, error = np.mean(list(chances(table, size)), axis=0)
            print(f"| {table.stem} | {size} | {met:.2f} | {said:.2f} | {loss:.3f} | {error:.2f} |")


if __name__ == "__main__":
    main()
