"""A search of days in an hour: thousands of trials in one go, and what they take.

    python tests/benchmarks/bench_days.py --trials 3000 [--every 0] [--seed 0] [--keep FOLDER]

`tune-speed search` trains a tiny network on digits for 6 to 30 steps a trial, two at a time;
proposals are ours (`time_to_target`), MLflow's store is an SQLite file. With `--every 30`, every 30
seconds a trial's process is killed, or the store is locked for 8 s. Then the page, the leaderboard
and `--resume` are made by commands.

| figure       | what it is                                                         | bar  |
|--------------|--------------------------------------------------------------------|------|
| kB a trial   | growth of the driver's resident memory from a sixth of the trials on | 10 |
| behind       | trials that MLflow lacked: at most                                 |      |
| beside       | wall time beyond training and evaluation, a trial [ms]             |      |

Exit code 1 if a trial is lost or there twice, in the ledger or in MLflow, or if a command printed a
traceback or left something. What is measured beside other work is that machine's at that moment.
"""

import argparse
import os
import random
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "faults"), str(TESTS / "cluster")]

from bench_soak import study_of  # noqa: E402
from helpers.command import finished  # noqa: E402
from helpers.tracking.stores import locked  # noqa: E402
from soak_claims import check_records  # noqa: E402
from soak_scenes import Place  # noqa: E402
from soak_world import Process  # noqa: E402

LOCKED_S, LEAST_S, MOST_S = 8.0, 600.0, 3.0
"""The others: of the whole search, and a trial more of it."""
COMMANDS = (
    "leaderboard --study tiny",
    "report tiny",
    "search tiny.yaml --resume --trials {trials}",
)


class Sample(NamedTuple):
    at_s: float
    trials: int
    behind: int
    memory_mib: float


def watch(place: Place, search: Process, options: argparse.Namespace) -> list[Sample]:
    seen, happened, rng = list[Sample](), Counter[str](), random.Random(options.seed)
    began_s = fault_s = time.monotonic()
    while search.poll() is None and time.monotonic() - began_s < LEAST_S + options.trials * MOST_S:
        if options.every and time.monotonic() > fault_s + options.every:
            fault_s = time.monotonic()
            happened[fault(place, rng)] += 1
        with suppress(psutil.Error, sqlite3.Error, FileNotFoundError):
            number, memory = len(finished(place.folder)), psutil.Process(search.pid).memory_info()
            there = num_delivered(place.database)
            at_s, mib = time.monotonic() - began_s, memory.rss / 2**20
            seen.append(Sample(at_s, number, number - there, mib))
            if len(seen) % 10 == 1:
                print(f"{at_s:7.0f} s {number:6} trials {mib:6.0f} MiB", flush=True)
        time.sleep(max(2.0, options.trials / 500))
    place.end(search, {0, 1})
    print(f"{time.monotonic() - began_s:7.0f} s in all; faults: {dict(happened)}")
    return seen


def fault(place: Place, rng: random.Random) -> str:
    processes = place.processes("TrialProcess")
    if processes and rng.random() < 2 / 3:
        with suppress(psutil.Error):
            rng.choice(processes).kill()
        return "kill -9 a trial's process"
    with locked(place.database):
        time.sleep(LOCKED_S)
    return "lock the store"


def num_delivered(database: Path) -> int:
    query = (
        "SELECT count(*) FROM runs r JOIN tags t ON r.run_uuid = t.run_uuid WHERE r.status IN"
        " ('FINISHED', 'FAILED') AND t.key = 'mlflow.parentRunId'"
    )
    with closing(sqlite3.connect(database)) as connection:
        return int(connection.execute(query).fetchone()[0])


def show(place: Place, seen: list[Sample]) -> None:
    runs = [record["runs"][-1] for record in finished(place.folder)]
    trained_s = sum(run["clocks"]["train_s"] + run["clocks"]["eval_s"] for run in runs) / 2
    first = next((each for each in seen if each.trials >= len(runs) / 6), seen[0])
    last = seen[-1]
    grown_kb = 1024 * (last.memory_mib - first.memory_mib) / max(1, last.trials - first.trials)
    print(f"{len(runs)} trials, {len(runs) / last.at_s:.2f} a second")
    print(f"beside training: {1000 * (last.at_s - trained_s) / len(runs):.0f} ms a trial")
    memory = f"{first.memory_mib:.0f} to {last.memory_mib:.0f} MiB"
    print(f"the driver: {memory}, {grown_kb:.1f} kB a trial")
    print(f"behind at most: {max(each.behind for each in seen)}")
    for path in (place.studies / "tiny" / "ledger.jsonl", place.database):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=3000)
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two faults")
    parser.add_argument("--policy", default="time_to_target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for what was broken")
    options = parser.parse_args()
    short = {"slow_s": 0.0, "slowest_s": 0.001, "fewest": 1, "most": 5}
    study = study_of(options.seed, policy=options.policy, **short)
    place = Place(study, rng=random.Random(options.seed))
    os.environ.setdefault("TUNE_SPEED_CACHE", str(place.folder / "cache"))
    try:
        seen = watch(place, place.search("--trials", str(options.trials)), options)
        show(place, seen)
        for command in COMMANDS:
            began_s = time.monotonic()
            place.run(*command.format(trials=options.trials).split(), codes={0, 1})
            print(f"{command.split()[0]}: {time.monotonic() - began_s:.1f} s", flush=True)
        print(f"the page: {(place.folder / 'report.html').stat().st_size / 1e6:.1f} MB")
        claims = {f"{options.trials} have finished": len(finished(place.folder)) == options.trials}
        claims |= check_records(place.folder, place.database)
        place.look_for_left()
        claims["nothing is broken or left"] = not place.broken
        for text, holds in [*claims.items(), *((text, False) for text in place.broken)]:
            print(f"{'holds ' if holds else 'BROKEN'}  {text}")
        return 0 if all(claims.values()) else 1
    finally:
        place.close(options.keep)


if __name__ == "__main__":
    sys.exit(main())
