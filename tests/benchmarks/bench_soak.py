"""A search under random faults: nothing is lost, nothing is there twice, nothing leaks.

    python tests/benchmarks/bench_soak.py [--minutes 30] [--every 20] [--seed 0] [--keep FOLDER]

One study of short trainings (a tiny network on digits, some seconds each, saved every second) runs
on a Ray cluster of three nodes, each a tree of processes of its own on this machine, with an MLflow
server on SQLite, while something is killed, stopped or locked every `--every` seconds: a trial's
process (any, one that starts, one that measures), a whole node (back after a while), the driver (by
each signal; followed by `--resume`), the MLflow server (back after a while), the server's database
(locked for seconds), the disk of the study (frozen for seconds), the driver's time of day (jumps),
and a report, an export, a certification that were begun beside. Kinds come in turn, in an order
drawn anew for each turn. At the end the driver is stopped, all is brought back, `--resume` finishes
what is left, and the other commands finish what they were killed in.

A disk of its own needs root, a clock that jumps a C compiler: else there is "no victim there".

Claims, checked at the end against the ledger's lines and MLflow's tables themselves:

- each trial that was ever proposed is finished, exactly once, in the ledger and in MLflow;
- each has a status of its own; one that failed says why;
- its curve in MLflow is the one in the ledger, each point once;
- the driver's memory, open files and threads do not grow with the trials of a session;
- when the search is over, cluster and server have the processes and open files of the beginning;
- nobody holds the study, and no process of the search is left;
- a driver that was asked to end does so soon;
- report, export and certification succeed after they were killed, and leave whole files or none.

Exit code 1 if one of them does not hold. Tables are printed either way. `--minutes 3` is a try;
`--kinds driver` has only faults with that in their name.
"""

import argparse
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "helpers"), str(TESTS / "faults"), str(TESTS / "cluster")]

from soak_claims import Claims, check_leaks, check_records  # noqa: E402
from soak_faults import KINDS, Soak  # noqa: E402

STUDY = """
study: tiny
workload:
  dataset: {{name: digits}}
  target: {{metric: accuracy, value: 0.5}}
  max_train_s: 600
  split: {{validation_frac: 0.2, train_samples: 300, validation_samples: 100}}
recipe:
  model: {{faulty: {{slow_s: {{low: 0.06, high: 0.1}}}}}}
  optimizer: {{sgd: {{lr: {{low: 0.02, high: 0.4, log: true}}}}}}
  lr_schedule: one_cycle
  epochs: {{low: 4, high: 12}}
  batch_size: 50
search:
  trials: 100000
  concurrent: 3
  policy: random
  seed: {seed}
  hang_after: 15s
  attempts: 5
  checkpoint_every: 1s
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="only faults with this in their name")
    parser.add_argument("--keep", type=Path, help="a folder for ledger, logs and databases")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="tune_speed-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TUNE_SPEED_CACHE", str(folder / "cache"))
    (folder / "tiny.yaml").write_text(STUDY.format(seed=arguments.seed))
    try:
        claims = soak(folder, arguments)
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print()
    for text, holds in claims.items():
        print(f"{'holds ' if holds else 'BROKEN'}  {text}")
    return 0 if all(claims.values()) else 1


def soak(folder: Path, arguments: argparse.Namespace) -> Claims:
    """Runs the search through its faults; prints tables; returns what holds."""
    with Soak(folder, rng=random.Random(arguments.seed)) as soak:
        began_s = time.monotonic()
        faults = deck(random.Random(arguments.seed), arguments.kinds)
        next_s = time.monotonic() + arguments.every
        end_s = time.monotonic() + 60 * arguments.minutes
        while time.monotonic() < end_s:
            soak.look_after()
            if time.monotonic() >= next_s:
                soak.happen(next(faults))
                next_s = time.monotonic() + arguments.every
            time.sleep(0.2)
        soak.finish()
        print_faults(soak, time.monotonic() - began_s)
        return {**check_records(folder), **check_leaks(soak)}


def deck(rng: random.Random, part: str) -> Iterator[str]:
    """Yields kinds of faults with this in their name: all of them, in a new order each time."""
    kinds = [kind for kind in KINDS if part in kind]
    for _ in itertools.count():
        yield from rng.sample(kinds, k=len(kinds))


def print_faults(soak: Soak, took_s: float) -> None:
    happened = Counter(kind for _, kind, was_done in soak.happened if was_done)
    skipped = Counter(kind for _, kind, was_done in soak.happened if not was_done)
    print(f"\n{'fault':28} {'times':>6} {'no victim there':>16}")
    for kind in KINDS:
        print(f"{kind:28} {happened[kind]:6} {skipped[kind]:16}")
    print(f"{'together':28} {happened.total():6} {skipped.total():16}   in {took_s / 60:.1f} min")
    print(f"exit codes of drivers asked to end: {dict(Counter(code for code, _ in soak.asked))}")
    print(f"sessions of the driver: {soak.num_sessions}, ended by itself: {soak.ended_itself}")


if __name__ == "__main__":
    sys.exit(main())
