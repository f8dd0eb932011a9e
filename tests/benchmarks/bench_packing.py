"""Trials an hour with one, two and three at a time, and what `--concurrent auto` makes of it.

    python tests/benchmarks/bench_packing.py [--rounds 3] [--trials 6] [--gpu]

Each round runs the same few trials of digits once with each number at a time, and once with `auto`,
in turns and with an empty store each, in processes of their own with a local Ray. On a CPU a trial
asks for `--cpu` of a core; on a GPU (`--gpu`) `auto` divides it. Trials an hour are the trials over
the time from the first proposal to the last end. Printed are medians over rounds, their ratio to
one at a time, what auto predicted and chose, and its choice over the best fixed number (bar: 0.95).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

BAR = 0.95
STUDY = """
study: packing
workload:
  dataset: {name: digits}
  target: {metric: accuracy, value: 0.9}
  split: {validation_frac: 0.2}
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.02, high: 0.4, log: true}}}
  lr_schedule: one_cycle
  epochs: {low: 6, high: 10}
  batch_size: {choices: [32, 64, 128]}
search: {policy: random, seed: 1}
"""


class Search(NamedTuple):
    trials_per_hour: float
    reached: int
    before_s: float
    """From the command to the first proposal [s]."""
    packing: dict[str, Any] | None


def search(concurrent: str, options: argparse.Namespace) -> Search:
    resources = f"cpu={1 if options.gpu else options.cpu}"
    fixed = "1" if concurrent == "auto" else f"{1 / int(concurrent)}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "packing.yaml").write_text(STUDY)
        command = [sys.executable, "-m", "tune_speed", "search", "packing.yaml"]
        command += ["--concurrent", concurrent, "--trials", str(options.trials)]
        command += ["--set", f"search.resources.{resources}"]
        command += ["--set", f"search.resources.gpu={fixed}"] if options.gpu else []
        environment = {**os.environ, "TUNE_SPEED_STUDIES": name, "OMP_WAIT_POLICY": "passive"}
        environment["TUNE_SPEED_CACHE"] = str(Path(tempfile.gettempdir()) / "bench_cache")
        environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        began_s = time.time()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"the search with {concurrent} failed:\n{done.stderr[-3000:]}")
        return _read(folder / "packing", began_s)


def _read(folder: Path, began_s: float) -> Search:
    events = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    records = [event["record"] for event in events if event["event"] == "finished"]
    # A trial's own clock begins with it; its proposal is some milliseconds before.
    starts_s = [datetime.fromisoformat(record["started_at"]).timestamp() for record in records]
    ends_s = [datetime.fromisoformat(record["finished_at"]).timestamp() for record in records]
    file = folder / "packing.json"
    return Search(
        trials_per_hour=3600 * len(records) / (max(ends_s) - min(starts_s)),
        reached=sum(record["status"] == "reached" for record in records),
        before_s=min(starts_s) - began_s,
        packing=json.loads(file.read_text()) if file.exists() else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--cpu", type=float, default=0.6, help="cores of a trial")
    parser.add_argument("--at-once", nargs="+", default=["1", "2", "3"])
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    ways = [*options.at_once, "auto"]
    found: dict[str, list[Search]] = {way: [] for way in ways}
    for number in range(options.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            found[way].append(each := search(way, options))
            print(
                f"round {number + 1}, {way:4}: {each.trials_per_hour:.0f} trials an hour,"
                f" {each.reached} reached, {each.before_s:.1f} s before the first",
                flush=True,
            )
    report(found, options.at_once)


def report(found: dict[str, list[Search]], fixed: list[str]) -> None:
    medians = {
        way: statistics.median(each.trials_per_hour for each in searches)
        for way, searches in found.items()
    }
    for way, rate in medians.items():
        print(f"{way:4}: {rate:.0f} trials an hour, {rate / medians[fixed[0]]:.2f} of {fixed[0]}")
    for each in found["auto"]:
        if each.packing is not None:
            gains = ", ".join(f"{k}: {gain:.2f}" for k, gain in each.packing["gains"].items())
            print(f"auto predicted {gains} and chose {each.packing['concurrent']}")
    extra_s, plain_s = (
        statistics.median(each.before_s for each in found[way]) for way in ("auto", fixed[0])
    )
    print(f"measuring took {extra_s - plain_s:.1f} s more before the first trial")
    share = medians["auto"] / max(medians[way] for way in fixed)
    print(
        f"auto over the best fixed: {share:.2f} (bar {BAR}: {'held' if share >= BAR else 'missed'})"
    )


if __name__ == "__main__":
    main()
