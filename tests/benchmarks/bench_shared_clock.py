"""Whether a search on a shared device knows how long its trials take alone on it.

    python tests/benchmarks/bench_shared_clock.py [--rounds 2] [--cotenants 2] [--gpu]

Fourteen recipes of different speed, drawn at random, on digits, whose target is so low that each
meets it at its end:

- shared: in a real search, over Ray, `--cotenants` trials at a time, each with `--threads` threads
  (or its share of the GPU): with two of both, two cores have twice the work that they can do;
- alone: one after the other in one process, with as many threads (or the whole GPU).

Both are done `--rounds` times in turn, searches with empty stores, so that each measures anew.
Printed, as medians over rounds, are the time to target of each recipe alone, by the
shared search's training clock (steps times isolated step time) and by its raw wall-clock, and over
all recipes Kendall's τ between shared and alone and the median of their ratios. The bar: τ ≥ 0.95
and the median ratio within 5 % of 1, by the training clock. With two rounds or more, the same of
the first two rounds alone says what the machine itself allows.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from scipy.stats import kendalltau

from tune_speed.reporting.leaderboard.text import describe_params

NUM_RECIPES = 14
TAU_BAR, RATIO_BAR = 0.95, 0.05
BIN = Path(sys.executable).parent


Recipes = list[tuple[dict[str, Any], dict[str, Any]]]
"""What was drawn of each recipe, and the whole of it."""


class Shared(NamedTuple):
    """One trial of the search."""

    train_s: float
    wall_s: float
    timing: str
    slowdown: float


def study(cotenants: int, cpus: int, *, gpu: bool) -> dict[str, Any]:
    """Returns the study file from which the recipes are drawn."""
    return {
        "study": "shared_clock",
        "workload": {
            "dataset": {"name": "digits"},
            "target": {"metric": "accuracy", "value": 0.15},
            "max_train_s": 600.0,
            "split": {"validation_frac": 0.2},
            "eval_every_samples": 4000,
        },
        "recipe": {
            "model": {"resnet20": {}},
            "optimizer": {"choices": {"sgd": {"lr": 0.1}, "adamw": {"lr": 0.003}}},
            "lr_schedule": {"one_cycle": {}},
            "epochs": {"low": 2.0, "high": 24.0, "log": True},
            "batch_size": {"choices": [32, 64, 128, 256]},
            "accumulation_steps": {"choices": [1, 2]},
            "channels_last": {"choices": [True, False]},
        },
        "search": {
            "trials": NUM_RECIPES,
            "concurrent": cotenants,
            "policy": "random",
            "resources": {"cpu": cpus, "gpu": 1 / cotenants if gpu else 0},
        },
    }


def run_alone(recipes: Recipes, workload: Any, cpus: int, device: str, out: Path) -> None:
    """Runs each recipe alone, in this process, and writes its time to target."""
    from tune_speed.training.objective import finish, run_trial
    from tune_speed.training.recipe import Recipe
    from tune_speed.training.trial import Allotment, TrialSpec
    from tune_speed.training.workload import Workload

    times = []
    for number, (params, recipe) in enumerate(recipes):
        spec = TrialSpec(
            study="alone",
            trial_id=f"t{number:04d}",
            params=params,
            recipe=Recipe.model_validate(recipe),
            workload=Workload.model_validate(workload),
            workload_hash="",
            space_hash="",
            seed=number,
            allotment=Allotment(
                device=device, cpu_threads=cpus, gpu_fraction=float(device == "cuda")
            ),
        )
        run = finish(run_trial(spec), on_report=lambda record: None).runs[0]
        if run.timing != "exclusive" or run.time_to_target_s is None:
            others = ", ".join(run.cotenants) or run.note or run.stop_reason
            raise SystemExit(f"a run alone must be alone and meet its target, but got: {others}")
        times.append(run.time_to_target_s)
    out.write_text(json.dumps(times))


def run_shared(tree: Mapping[str, Any], folder: Path, address: str) -> tuple[Recipes, list[Shared]]:
    """Runs the search; returns the recipes that it drew, always the same, and their times."""
    folder.mkdir()
    (folder / "shared_clock.yaml").write_text(yaml.safe_dump(dict(tree)))
    search = ["search", "shared_clock.yaml", "--address", address]
    command = [str(BIN / "tune-speed"), *search]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the search ended with exit code {done.returncode}: {done.stderr}")
    ledger = (folder / "tune_speed_studies" / "shared_clock" / "ledger.jsonl").read_text()
    found = [json.loads(line).get("record") for line in ledger.splitlines()]
    records = sorted((r for r in found if r), key=lambda record: record["trial_id"])
    recipes = [(record["params"], record["recipe"]) for record in records]
    return recipes, [_shared(record["runs"][-1]) for record in records]


def _shared(run: Mapping[str, Any]) -> Shared:
    slowdown = run["slowdown"] or 1.0
    return Shared(run["time_to_target_s"], run["shared_train_s"], run["timing"], slowdown)


@contextmanager
def cluster(cpus: int, *, gpu: bool) -> Iterator[str]:
    """Starts a Ray node that believes in enough cores for all co-tenants; yields its address."""
    port = "6399"
    options = [
        "--port",
        port,
        "--num-cpus",
        str(cpus),
        "--include-dashboard",
        "false",
        "--disable-usage-stats",
    ]
    start = [str(BIN / "ray"), "start", "--head", *options, *(["--num-gpus", "1"] if gpu else [])]
    # Threads that wait for one another spin by default; with more threads than cores they would
    # only keep those from running that they wait for.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    subprocess.run(start, check=True, capture_output=True, env=environment)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        subprocess.run([str(BIN / "ray"), "stop", "--force"], check=False, capture_output=True)


def in_a_process(*arguments: Any) -> None:
    """Runs `run_alone` in a process of its own: started anew, a fork after torch may hang."""
    process = multiprocessing.get_context("spawn").Process(target=run_alone, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"the runs alone ended with exit code {process.exitcode}")


def report(
    recipes: Recipes, alone: Sequence[float], shared: Sequence[Shared], *, rounds: int
) -> dict[str, Any]:
    """Prints the table; returns the figures."""
    print("| recipe | alone [s] | shared search [s] | ratio | wall-clock [s] | ratio |")
    print("|---|---|---|---|---|---|")
    for (params, _), alone_s, each in zip(recipes, alone, shared, strict=True):
        times = (alone_s, each.train_s, each.train_s / alone_s, each.wall_s, each.wall_s / alone_s)
        cells = [describe_params(params), *(f"{time:.3g}" for time in times)]
        print(f"| {' | '.join(cells)} |")
    isolated = _compare("steps × isolated step time", alone, [each.train_s for each in shared])
    wall = _compare("raw wall-clock", alone, [each.wall_s for each in shared])
    held = isolated["tau"] >= TAU_BAR and abs(isolated["median_ratio"] - 1) <= RATIO_BAR
    verdict = "held" if held else "missed"
    print(f"bar (τ ≥ {TAU_BAR}, median ratio within {RATIO_BAR:.0%} of 1): {verdict}")
    timings = sorted({each.timing for each in shared})
    return {"rounds": rounds, "timings": timings, "isolated": isolated, "wall": wall}


def _compare(name: str, alone: Sequence[float], times: Sequence[float]) -> dict[str, Any]:
    ratios = [time_s / alone_s for time_s, alone_s in zip(times, alone, strict=True)]
    tau, middle = float(kendalltau(alone, times).statistic), statistics.median(ratios)
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"{name}: Kendall's τ {tau:.3f}, median ratio {middle:.3f} ({spread})")
    return {"tau": tau, "median_ratio": middle, "ratios": ratios}


def main() -> None:
    """Runs the rounds and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of a trial on a CPU")
    parser.add_argument("--cotenants", type=int, default=2)
    parser.add_argument(
        "--gpu", action="store_true", help="on the first GPU; 4 co-tenants are usual"
    )
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    cpus = options.threads
    device = "cuda" if options.gpu else "cpu"
    tree = study(options.cotenants, cpus, gpu=options.gpu)
    alone: list[list[float]] = []
    shared: list[list[Shared]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        cluster(cpus * options.cotenants, gpu=options.gpu) as address,
    ):
        for number in range(options.rounds):
            began = time.time()
            out = Path(name) / f"alone-{number}.json"
            recipes, times = run_shared(tree, Path(name) / f"shared-{number}", address)
            shared.append(times)
            in_a_process(recipes, tree["workload"], cpus, device, out)
            alone.append(json.loads(out.read_text()))
            print(f"round {number + 1}: {time.time() - began:.0f} s", file=sys.stderr)
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {cpus} threads a trial, {options.cotenants} co-tenants")
    medians = [statistics.median(times) for times in zip(*alone, strict=True)]
    typical = [
        Shared(
            *(statistics.median(s[i] for s in trials) for i in (0, 1)),
            trials[0].timing,
            trials[0].slowdown,
        )
        for trials in zip(*shared, strict=True)
    ]
    figures = report(recipes, medians, typical, rounds=options.rounds)
    if options.rounds > 1:
        figures["noise"] = _compare("noise, alone against alone", alone[0], alone[1])
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
