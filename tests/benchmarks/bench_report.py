"""How long the page of a study of 500 trials takes, and how large it is.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/bench_report.py

Takes about a minute. A store is filled with one synthetic study (`synthetic_store`: no curves
beside those in MLflow's metrics, three of the trials certified); then `tune-speed report` is run as
a user runs it, start of Python included, several times, the first of which warms up and does not
count. The slowest of the others does: the bar is 10 s and 5 MB for 500 trials.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from synthetic_store import fill

LONGEST_S, LARGEST_MB = 10.0, 5.0
STUDY = "study-0000"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="bench_report-") as name:
        folder, trials = Path(name), arguments.trials
        fill(f"sqlite:///{folder / 'mlflow.db'}", num_trials=trials, trials_per_study=trials)
        report(folder)
        times_s = [report(folder) for _ in range(arguments.repeats)]
        size_mb = (folder / "report.html").stat().st_size / 1e6
    facts = {
        "trials": trials,
        "seconds": [round(time_s, 2) for time_s in times_s],
        "median_s": round(statistics.median(times_s), 2),
        "megabytes": round(size_mb, 2),
        "is_within_bar": max(times_s) < LONGEST_S and size_mb < LARGEST_MB,
    }
    print(json.dumps(facts, indent=2))


def report(folder: Path) -> float:
    """Returns how long the command takes [s]."""
    command = [str(Path(sys.executable).parent / "tune-speed"), "report", STUDY]
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, env=own, check=True, capture_output=True)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
