"""A search under random faults: nothing is lost, nothing is there twice, nothing leaks.

    python tests/benchmarks/bench_soak.py --minutes 60 [--every 20] [--seed 0] [--keep FOLDER]

Two worlds at the same time. One study of short trainings runs on a Ray cluster of three nodes, each
a tree of processes of its own on this machine, with an MLflow server on SQLite, while something is
killed, stopped, frozen or locked every `--every` seconds (`soak_faults.KINDS`): what is gone is
brought back, the driver by `--resume`, which also finishes what is left at the end. Meanwhile
searches on this machine alone, with MLflow's store in a file, have one fault each
(`soak_scenes.SCENES`). Kinds come in turn, in an order drawn for each turn.

A disk of its own and a limit of processes need root, a clock that jumps a C compiler: else there is
"no victim there". FOLDER/soak.json has the figures so far at any moment.

Claims, checked at the end against the ledger's lines and MLflow's tables themselves: each trial
that was ever proposed is finished once, in the ledger and in MLflow, with its curve and, if it
failed, why; the driver's memory, files and threads do not grow with trials; cluster and server have
the processes and files of the beginning; nothing holds the study, and nothing is left in TMPDIR
and /dev/shm; a driver that is asked to end does so within two minutes; no command prints a
traceback, leaves half a file, or ends with an exit code that the README does not have.

Exit code 1 if one of them does not hold. `--minutes 3` is a try; `--kinds driver` has only faults
with that in their name, in both worlds.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "faults"), str(TESTS / "cluster")]

from soak_claims import Claims, check_leaks, check_records, print_trials  # noqa: E402
from soak_faults import KINDS, Soak  # noqa: E402
from soak_scenes import OPEN, SCENES, play  # noqa: E402

STUDY = """
study: tiny
workload:
  dataset: {{name: digits}}
  target: {{metric: accuracy, value: 0.5}}
  max_train_s: 600
  split: {{validation_frac: 0.2, train_samples: 300, validation_samples: 100}}
recipe:
  model: {{faulty: {{slow_s: {{low: {slow_s}, high: {slowest_s}}}}}}}
  optimizer: {{sgd: {{lr: {{low: 0.02, high: 0.4, log: true}}}}}}
  lr_schedule: one_cycle
  epochs: {{low: {fewest}, high: {most}}}
  batch_size: 50
search:
  trials: 100000
  concurrent: {concurrent}
  policy: {policy}
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
    parser.add_argument("--keep", type=Path, help="a folder for ledger, logs, databases, figures")
    parser.add_argument("--scenes", type=int, default=1, help="so many at the same time")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="tune_speed-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TUNE_SPEED_CACHE", str(folder / "cache"))
    before = shared_memory()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        claims = soak(folder, arguments)
    finally:
        for place in [*OPEN]:
            place.close(None)
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    left = unheld(shared_memory() - before)
    claims[f"nothing is left in /dev/shm {left or ''}"] = not left
    print()
    for text, holds in claims.items():
        print(f"{'holds ' if holds else 'BROKEN'}  {text}")
    return 0 if all(claims.values()) else 1


def study_of(seed: int, **changes: Any) -> str:
    own = {"slow_s": 0.06, "slowest_s": 0.1, "fewest": 4, "most": 12, "policy": "random"}
    own |= {"concurrent": 2, **changes}
    return STUDY.format(seed=seed, **own)


class Scenes(threading.Thread):
    def __init__(self, arguments: argparse.Namespace, folder: Path, *, seed: int) -> None:
        super().__init__(daemon=True)
        self.played: list[dict[str, Any]] = []
        self._rng, self._kept, self._study = random.Random(seed), folder, study_of(seed)
        self._names = deck(SCENES, random.Random(seed), arguments.kinds)
        self._end_s = time.monotonic() + 60 * arguments.minutes
        self.start()

    def run(self) -> None:
        for name in self._names:
            if time.monotonic() > self._end_s:
                return
            figures = play(name, self._study, rng=self._rng, kept=self._kept)
            self.played.append({"kind": name, **figures})
            wrong = "".join(f"\n        BROKEN {each}" for each in figures["broken"])
            print(
                f"{figures['took_s']:6.0f} s  scene: {name} {figures['codes']}{wrong}", flush=True
            )


def soak(folder: Path, arguments: argparse.Namespace) -> Claims:
    """Runs the search through its faults; prints tables; returns what holds."""
    rng = random.Random(arguments.seed)
    (folder / "tiny.yaml").write_text(study_of(arguments.seed, concurrent=3))
    with Soak(folder, rng=random.Random(arguments.seed)) as soak:
        began_s = time.monotonic()
        faults = deck(KINDS, rng, arguments.kinds)
        next_s = time.monotonic() + arguments.every
        end_s = time.monotonic() + 60 * arguments.minutes
        seeds = range(100 * arguments.seed, 100 * arguments.seed + arguments.scenes)
        scenes = [Scenes(arguments, folder, seed=seed) for seed in seeds]
        while (now_s := time.monotonic()) < end_s or any(each.is_alive() for each in scenes):
            soak.look_after()
            if now_s >= next_s and soak.is_up:
                if now_s < end_s and (kind := next(faults, None)) is not None:
                    soak.happen(kind)
                next_s = now_s + arguments.every
                write_figures(folder, soak, played_in(scenes), minutes=(now_s - began_s) / 60)
            time.sleep(0.2)
        soak.finish()
        played = played_in(scenes)
        print_faults(soak, played, time.monotonic() - began_s)
        print_trials(folder)
        claims = {**check_records(folder, folder / "server" / "mlflow.db"), **check_leaks(soak)}
        broken = any(each["broken"] for each in played)
        claims[f"nothing is broken in {len(played)} scenes"] = not broken
        minutes = (time.monotonic() - began_s) / 60
        write_figures(folder, soak, played, minutes=minutes, claims=claims)
        return claims


def played_in(scenes: list[Scenes]) -> list[dict[str, Any]]:
    return [each for one in scenes for each in one.played]


def deck(table: Iterable[str], rng: random.Random, part: str) -> Iterator[str]:
    """Yields kinds of faults with this in their name: all of them, in a new order each time."""
    kinds = [kind for kind in table if part in kind]
    while kinds:
        yield from rng.sample(kinds, k=len(kinds))


def write_figures(folder: Path, soak: Soak, played: list[dict[str, Any]], **more: Any) -> None:
    figures = {"happened": soak.happened, "sessions": soak.num_sessions, "asked": soak.asked}
    figures |= {"ended_itself": soak.ended_itself, "longest_without_news_s": soak.stalled_s}
    figures |= {"broken": soak.commands.broken, "scenes": played, **more}
    (folder / "soak.json").write_text(json.dumps(figures, indent=1))


def shared_memory() -> set[Path]:
    return set(Path("/dev/shm").iterdir())


def unheld(paths: set[Path]) -> list[str]:
    """Returns which of these files no process has mapped."""
    held = ""
    for maps in Path("/proc").glob("[0-9]*/maps") if paths else ():
        with suppress(OSError):
            held += maps.read_text()
    return [str(path) for path in paths if path.exists() and str(path) not in held]


def print_faults(soak: Soak, played: list[dict[str, Any]], took_s: float) -> None:
    happened = Counter(kind for _, kind, was_done in soak.happened if was_done)
    skipped = Counter(kind for _, kind, was_done in soak.happened if not was_done)
    scenes = Counter(each["kind"] for each in played)
    print(f"\n{'fault':40} {'times':>6} {'no victim there':>16}")
    for kind in (*KINDS, *SCENES):
        print(f"{kind:40} {happened[kind] + scenes[kind]:6} {skipped[kind]:16}")
    total = happened.total() + scenes.total()
    print(f"{'together':40} {total:6} {skipped.total():16}   in {took_s / 60:.1f} min")
    codes = sum((Counter(each["codes"]) for each in played), Counter[str]())
    print(f"exit codes in scenes: {dict(codes)}")
    slowest_s, what = max((each["slowest"] for each in played), default=(0.0, ""))
    print(f"the longest end after being asked in scenes: {slowest_s:.0f} s {what}")
    print(f"exit codes of drivers asked to end: {dict(Counter(code for code, _ in soak.asked))}")
    print(f"sessions of the driver: {soak.num_sessions}, ended by itself: {soak.ended_itself}")
    print(f"the longest time without a line in the ledger: {soak.stalled_s:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
