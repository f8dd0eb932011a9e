"""How much windows of one kind of step spread, as they are and at the machine's usual speed.

    python tests/benchmarks/bench_windows.py [--rounds 6]

Five recipes on digits take turns in one process, as what could be first does when a search ends
(`time_side_by_side`), `--rounds` times while other processes, one a core, are at work 0, 50 and
100 % of the time. Printed for each recipe: the standard deviation of the logarithm of its step time
without what the thread waited for a core, and of the same over the reference step beside it; and
the mean of both over that without load.
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench_shared_clock import loaded

from tune_speed.core.records import StepTime
from tune_speed.training.recipe import Recipe
from tune_speed.training.side_by_side import time_side_by_side
from tune_speed.training.trial import Allotment, TrialSpec
from tune_speed.training.workload import Workload

WORKLOAD = {"dataset": {"name": "digits"}, "target": {"metric": "accuracy", "value": 0.9}}
PLAIN = {"optimizer": {"sgd": {"lr": 0.1}}, "epochs": 2, "batch_size": 64}
RECIPES: dict[str, dict[str, Any]] = {
    "resnet20": {"model": "resnet20"},
    "resnet20, batch 128": {"model": "resnet20", "batch_size": 128},
    "resnet20, bf16": {"model": "resnet20", "precision": "bf16"},
    "preact_resnet 8": {"model": {"preact_resnet": {"depth": 8}}},
    "plain_cnn, adamw": {"model": "plain_cnn", "optimizer": {"adamw": {"lr": 0.001}}},
}
SHARES = (0.0, 0.5, 1.0)


def spec(number: int, fields: dict[str, Any], threads: int) -> TrialSpec:
    """Returns the trial of one recipe."""
    return TrialSpec(
        study="windows",
        trial_id=f"t{number:04d}",
        params={},
        recipe=Recipe.model_validate(PLAIN | fields),
        workload=Workload.model_validate(WORKLOAD),
        workload_hash="",
        space_hash="",
        seed=0,
        allotment=Allotment(device="cpu", cpu_threads=threads),
    )


def logs(windows: Sequence[StepTime], of: Callable[[StepTime], float]) -> list[float]:
    """Returns the logarithms of a figure."""
    return [math.log(of(each)) for each in windows]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the windows there")
    options = parser.parse_args()
    specs = [spec(n, fields, options.threads) for n, fields in enumerate(RECIPES.values())]
    seen: dict[float, list[StepTime]] = {}
    for share in SHARES:
        with loaded(60.0 if share else None, (share,)):
            seen[share] = list(time_side_by_side(specs, rounds=options.rounds))
    print(f"{os.cpu_count()} cores, {options.threads} threads, {options.rounds} windows each")
    figures: dict[str, Callable[[StepTime], float]] = {
        "step time": lambda w: w.step_s,
        "over the reference": lambda w: w.step_s / (w.reference_s or math.nan),
    }
    keys = list(dict.fromkeys(each.key for each in seen[0.0]))
    print(
        "| recipe | others at work | disturbed | " + " | ".join(f"{n}: SD, mean" for n in figures)
    )
    for name, key in zip(RECIPES, keys, strict=True):
        for share, windows in seen.items():
            own = [each for each in windows if each.key == key]
            cells = []
            for of in figures.values():
                idle = statistics.fmean(logs([w for w in seen[0.0] if w.key == key], of))
                values = logs(own, of)
                ratio = math.exp(statistics.fmean(values) - idle)
                cells.append(f"{statistics.pstdev(values):.3f}, {ratio:.3f}")
            disturbed = sum(bool(each.disturbed) for each in own)
            print(f"| {name} | {share:.0%} | {disturbed} of {len(own)} | {' | '.join(cells)} |")
    if options.json:
        told = {str(s): [w.model_dump(mode="json") for w in each] for s, each in seen.items()}
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
