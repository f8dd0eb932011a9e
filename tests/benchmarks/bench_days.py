"""A search of days in an hour: thousands of trials of a second, with faults at random.

    python tests/benchmarks/bench_days.py [--trials 20000] [--minutes 60] [--every 30] [--seed 0]

The trials and nodes are those of `bench_scale`: a trial sleeps for a second and is evaluated 20
times, 8 at a time. Proposals are ours (`time_to_target`), MLflow's store is an SQLite file. Every
`--every` seconds a trial's process is killed, or the store is locked for 8 s. The driver is one
process all the time, as its memory is what is looked at; then the search is taken over in a new
process, as `--resume` does, and the page and the leaderboard are made by commands.

| figure       | what it is                                                         | bar  |
|--------------|--------------------------------------------------------------------|------|
| kB a trial   | growth of the driver's resident memory from the 500th trial on     | 10   |
| ask          | wall time of a proposal, median of the last 200 [ms]               | 50   |
| behind       | trials that MLflow lacked: at most, and when the last trial ended  |      |
| delivered/s  | trials that the store took, while trials ran and after it          |      |
| resume       | until the next proposal [s]                                        | 30   |

Exit code 1 if a trial is lost or there twice, in the ledger or in MLflow. What is measured beside
other work is that machine's at that moment.
"""

import argparse
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "helpers"), str(TESTS / "benchmarks")]

from bench_scale import (  # noqa: E402
    PATIENT,
    Anywhere,
    Meter,
    Trivial,
    Witness,
    controller_of,
    nodes,
    scale_study,
    take_over,
)
from processes import command_of  # noqa: E402
from stored import locked  # noqa: E402

from tune_speed.tracking.store.store import open_store  # noqa: E402
from tune_speed.tracking.writer.tracker import Tracker  # noqa: E402
from tune_speed.tuning.driver.ledger import Ledger  # noqa: E402
from tune_speed.tuning.ray import tuner  # noqa: E402
from tune_speed.tuning.ray.cluster import quiet_ray  # noqa: E402

LOCKED_S, DRAIN_S = 8.0, 600.0
WARM_TRIALS, LAST_ASKS = 500, 200


class Faults(threading.Thread):
    """Lets something happen every so many seconds, until it is told to stop."""

    def __init__(self, database: Path, *, every_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.happened: Counter[str] = Counter()
        self.over = threading.Event()
        self._database, self._every_s, self._rng = database, every_s, random.Random(seed)

    def run(self) -> None:
        while not self.over.wait(self._every_s):
            kill, lock = self._kill, self._lock
            self.happened[self._rng.choice([kill, kill, lock])()] += 1

    def _kill(self) -> str:
        found = [p for p in psutil.process_iter() if "ray::Trivial" in command_of(p)]
        with suppress(psutil.Error, IndexError):
            self._rng.choice(found).kill()
            return "kill -9 a trial's process"
        return "nobody to kill"

    def _lock(self) -> str:
        with locked(self._database):
            time.sleep(LOCKED_S)
        return "lock the store"


def search(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the search and returns its figures."""
    study = scale_study(folder, options, f"search.time_budget={60 * options.minutes:g}s")
    tracker = Tracker(open_store(f"sqlite:///{folder}/mlflow.db"), study="scale", study_tags={})
    meter, asks_s, behind = Meter(), list[float](), list[int]()
    faults = Faults(folder / "mlflow.db", every_s=options.every, seed=options.seed)
    with Ledger(folder / "study") as ledger:
        tracker.reconcile(ledger.records)
        controller = controller_of(study, ledger, Witness(meter), tracker)
        propose = controller.propose

        def timed() -> Any:
            began_s = time.perf_counter()
            spec = propose()
            if spec is not None:
                asks_s.append(time.perf_counter() - began_s)
            behind.append(len(tracker.expected))
            return spec

        controller.propose = timed  # type: ignore[method-assign]
        began_s = time.monotonic()
        faults.start()
        tuner.run_search(controller, Anywhere(), on_tick=lambda: None, process=Trivial)
        faults.over.set()
        faults.join()
        took_s, num_trials = time.monotonic() - began_s, len(ledger.records)
        late = len(tracker.expected)
        closed_s = time.monotonic()
        left = len(tracker.close(timeout_s=DRAIN_S))
        drained_s = time.monotonic() - closed_s
    (first, _, first_mib), (last, _, last_mib) = _from(meter.rss_mib), meter.rss_mib[-1]
    return {
        "trials": num_trials,
        "minutes": took_s / 60,
        "trials_per_s": num_trials / took_s,
        "faults": dict(faults.happened),
        "kb_a_trial": 1024 * (last_mib - first_mib) / max(1, last - first),
        "rss_mib": [first_mib, last_mib],
        "ask_ms": 1000 * statistics.median(asks_s[-LAST_ASKS:]),
        "behind_at_most": max(behind),
        "behind_at_the_end": late,
        "delivered_per_s": (num_trials - late) / took_s,
        "delivered_per_s_after": (late - left) / drained_s,
        "undelivered": left,
    }


def _from(rss_mib: list[tuple[int, float, float]]) -> tuple[int, float, float]:
    return next((each for each in rss_mib if each[0] >= WARM_TRIALS), rss_mib[0])


def mistakes(folder: Path, *, undelivered: int) -> list[str]:
    """Returns what was lost or is there twice, in words."""
    events = [json.loads(line) for line in (folder / "study" / "ledger.jsonl").open()]
    proposed = {event["trial_id"] for event in events if event["event"] == "proposed"}
    finished = Counter(e["record"]["trial_id"] for e in events if e["event"] == "finished")
    query = (
        "SELECT r.name FROM runs r JOIN tags t ON r.run_uuid = t.run_uuid WHERE t.key ="
        " 'mlflow.parentRunId' AND r.lifecycle_stage = 'active' AND r.status IN"
        " ('FINISHED', 'FAILED')"
    )
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        tracked = Counter(name for (name,) in connection.execute(query))
    found = {
        "finished more than once": [name for name, n in finished.items() if n > 1],
        "finished and never proposed": list(finished.keys() - proposed),
        "more than once in MLflow": [name for name, n in tracked.items() if n > 1],
        "in MLflow and not in the ledger": list(tracked.keys() - finished.keys()),
        "not in MLflow": list(finished.keys() - tracked.keys()),
    }
    if len(found["not in MLflow"]) == undelivered:
        found["not in MLflow"] = []
    return [f"{what}: {names[:5]}" for what, names in found.items() if names]


def command_s(folder: Path, *arguments: str) -> str:
    """Runs a command of ours in `folder`, and returns what it took, in words."""
    variables = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    began_s = time.monotonic()
    command = [str(Path(sys.executable).with_name("tune-speed")), *arguments]
    subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True)
    return f"{' '.join(arguments)}: {time.monotonic() - began_s:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for ledger and store")
    parser.add_argument("--take-over", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    scale = argparse.Namespace(**vars(options), concurrent=8, policy="time_to_target")
    scale.sampler = "gain"
    if options.take_over:
        take_over(options.keep, scale)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        gate = folder / "8"
        gate.mkdir(parents=True)
        os.environ.update(PATIENT, BENCH_GATE=str(gate), OMP_NUM_THREADS="1")
        quiet_ray()
        with nodes(1, 8):
            figures = search(folder, scale)
        print(json.dumps(figures, indent=2), flush=True)
        own = ["--keep", str(folder), "--trials", str(figures["trials"]), "--take-over"]
        subprocess.run([sys.executable, __file__, *own], check=True)
        for arguments in (("leaderboard", "--study", "scale"), ("report", "scale")):
            print(command_s(folder, *arguments), flush=True)
        size_mb = (folder / "report.html").stat().st_size / 1e6
        found = mistakes(folder, undelivered=figures["undelivered"])
        print(f"the page has {size_mb:.1f} MB; {found or 'nothing is lost, and nothing twice'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
