"""Whether a search on a shared device knows how long its trials take alone on it.

    python tests/benchmarks/bench_shared_clock.py [--rounds 3] [--cotenants 2] [--gpu] [--load]

Fourteen recipes on digits of different speeds (with `--compile` compiled ones instead of stochastic
depth), whose target is so low that each meets it at its end:

- shared: in a real search, over Ray, `--cotenants` trials at a time, each with `--threads` threads
  (or its share of the GPU). With `--load` other processes, one a core, are at work 0, 50 and 100 %
  of the time in turn, `--phase` seconds each;
- alone: one after the other, each in a process of its own, with as many threads (or the whole GPU),
  without load; short ones several times, of which the median counts.

Both are done `--rounds` times in turn, searches with empty stores. A search's times to target are
compared with the medians of the runs alone: by its training clock (pooled windows), by the first
window of each kind of step, and by raw wall-clock; once more at one speed of the machine, over the
reference steps beside them. Printed are the mean of Kendall's τ over searches, the median of all
ratios, the range that holds 90 % of them, and the standard deviation of a recipe's log time from
round to round. Bars for the training clock: τ 0.97, median within 2 %, 90 % within 5 %; with
`--load` 0.95, 5 % and 10 %. With two rounds or more, the same of the runs alone is printed.
"""

import argparse
import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from scipy.stats import kendalltau

from tune_speed.core.records import RunResult
from tune_speed.core.words import joined
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.tuning.driver.ledger import Ledger

BARS = {False: (0.97, 0.02, 0.05), True: (0.95, 0.05, 0.10)}
"""τ, the median ratio's distance from 1 and that of 90 % of ratios; without and with load."""
NUM_RECIPES = 14
ALONE_S, MOST_RUNS = 4.0, 7
"""A recipe runs alone until its runs took so long together [s], at most so often."""
OURS = [sys.executable, "-m", "tune_speed"]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


Recipes = list[tuple[dict[str, Any], dict[str, Any]]]
"""What was drawn of each recipe, and the whole of it."""


class Shared(NamedTuple):
    """One trial of the search, by three clocks [s]."""

    train_s: float
    first_s: float
    wall_s: float
    timing: str
    reference_s: float
    """The reference step [s] at the speed at which `train_s` is told; 0: nobody measured it."""


class Alone(NamedTuple):
    """One recipe alone [s]."""

    train_s: float
    relative: float
    """Its time over the reference steps beside it."""
    waited: float
    """Share of it in which it waited for a core, which windows leave out."""


def study(cotenants: int, cpus: int, *, gpu: bool, compiled: bool) -> dict[str, Any]:
    off_or_depth = {"off": None, "stochastic_depth": {"survival": 0.5}}
    # Which blocks are executed changes from step to step: it cannot be compiled.
    kinds = {
        "compile": {"choices": [False, True]} if compiled else False,
        "speedups": {
            "depth": {"choices": {"off": None} if compiled else off_or_depth},
            "averaging": {"choices": {"off": None, "ema": {"every": 5}}},
        },
    }
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
            "model": {"choices": {"resnet20": {}, "preact_resnet": {"depth": 8}}},
            "optimizer": {"sgd": {"lr": 0.1}},
            "lr_schedule": {"one_cycle": {}},
            "epochs": {"low": 4.0, "high": 20.0, "log": True},
            "batch_size": {"choices": [32, 64, 128]},
            "accumulation_steps": {"choices": [1, 2]},
            "precision": {"choices": ["fp32", "bf16"]},
            "loader": {"choices": {"resident": None, "dataloader": {"workers": 1}}},
            **kinds,
        },
        "search": {
            "trials": NUM_RECIPES,
            "concurrent": cotenants,
            "policy": "random",
            "resources": {"cpu": cpus, "gpu": 1 / cotenants if gpu else 0},
        },
    }


def run_load(num_cores: int, phase_s: float, shares: Sequence[float] = (0.0, 0.5, 1.0)) -> None:
    """Keeps cores busy for these shares of the time in turn, for ever."""
    for _ in range(num_cores - 1):
        if not os.fork():
            break
    began = time.monotonic()
    while True:
        busy = shares[int((time.monotonic() - began) / phase_s) % len(shares)]
        ends = time.monotonic() + 0.05 * busy
        while time.monotonic() < ends:
            pass
        time.sleep(0.05 * (1 - busy))


@contextmanager
def loaded(phase_s: float | None, shares: Sequence[float] = (0.0, 0.5, 1.0)) -> Iterator[None]:
    """Runs the load meanwhile; none where there is no phase."""
    if phase_s is None:
        yield
        return
    script = f"import bench_shared_clock as b; b.run_load({os.cpu_count()}, {phase_s}, {shares})"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", script]
    # Not in a session of its own: Linux would share the cores out by sessions, and leave us one.
    process = subprocess.Popen(command, env=environment, process_group=0)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_alone(
    params: Any, recipe: Any, workload: Any, cpus: int, device: str, seed: int, out: Path
) -> None:
    """Runs a recipe in this process until it is known; writes its `Alone`."""
    import torch

    from tune_speed.runtime.reference_step import ReferenceStep
    from tune_speed.runtime.step_timer import BLOCK_S, steady_interval
    from tune_speed.runtime.turnstile import Turnstile
    from tune_speed.training.objective import finish, run_trial
    from tune_speed.training.recipe import Recipe
    from tune_speed.training.trial import Allotment, TrialSpec
    from tune_speed.training.workload import Workload

    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.set_num_threads(cpus)
    reference = ReferenceStep(torch.device(device), synchronize=synchronize)
    spec = TrialSpec(
        study="alone",
        trial_id=f"t{seed:04d}",
        params=params,
        recipe=Recipe.model_validate(recipe),
        workload=Workload.model_validate(workload),
        workload_hash="",
        space_hash="",
        seed=seed,
        allotment=Allotment(device=device, cpu_threads=cpus, gpu_fraction=float(device == "cuda")),
    )

    ended_s = 0.0

    def is_due() -> bool:
        # As between blocks of a window: each time a GPU is waited for. Evaluations pause, too.
        is_training = not torch.is_inference_mode_enabled()
        return is_training and time.monotonic() > ended_s + BLOCK_S[device]

    def beside() -> None:
        nonlocal ended_s
        if reference.times_s:
            reference.catch_up()
        else:
            reference.begin()
        ended_s = time.monotonic()

    # This process is its own, and nobody else measures.
    setattr(Turnstile, "must_wait", lambda _: is_due())  # noqa: B010
    setattr(Turnstile, "wait", lambda _: beside())  # noqa: B010
    runs: list[Alone] = []
    while not runs or (len(runs) < MOST_RUNS and sum(run.train_s for run in runs) < ALONE_S):
        reference.times_s = []
        run = finish(run_trial(spec), on_report=lambda _: None).runs[0]
        if run.timing == "shared" or run.time_to_target_s is None:
            others = ", ".join(run.cotenants) or joined(run.note) or str(run.stop_reason)
            raise SystemExit(f"a run must be alone and meet its target, but got: {others}")
        relative = run.time_to_target_s / steady_interval(reference.times_s)[1]
        waited = (run.cpu_wait_s or 0.0) / run.clocks.train_s
        runs.append(Alone(run.time_to_target_s, relative, waited))
    out.write_text(json.dumps([statistics.median(each) for each in zip(*runs, strict=True)]))


def run_shared(tree: Mapping[str, Any], folder: Path, address: str) -> tuple[Recipes, list[Shared]]:
    """Runs the search; returns the recipes that it drew, always the same, and their times."""
    folder.mkdir()
    (folder / "shared_clock.yaml").write_text(yaml.safe_dump(dict(tree)))
    search = ["search", "shared_clock.yaml", "--address", address]
    command = [*OURS, *search]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the search ended with exit code {done.returncode}: {done.stderr}")
    with Ledger(folder / "tune_speed_studies" / "shared_clock") as ledger:
        records = [ledger.records[trial_id] for trial_id in sorted(ledger.records)]
    firsts: dict[str, float] = {}
    for record in records:
        for window in record.runs[-1].windows:
            firsts.setdefault(window.key, window.step_s)
    recipes = [(record.params, record.recipe) for record in records]
    return recipes, [_shared(record.runs[-1], firsts) for record in records]


def _shared(run: RunResult, firsts: Mapping[str, float]) -> Shared:
    assert run.time_to_target_s is not None and run.shared_train_s is not None
    first_s, reference_s = run.time_to_target_s, 0.0
    if run.step_times:
        (step_time,) = run.step_times
        first_s *= firsts[step_time.key] / step_time.step_s
        reference_s = step_time.reference_s or 0.0
    return Shared(run.time_to_target_s, first_s, run.shared_train_s, run.timing.value, reference_s)


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
    start = [*RAY, "start", "--head", *options, *(["--num-gpus", "1"] if gpu else [])]
    # Threads that wait for one another spin by default; with more threads than cores they would
    # only keep those from running that they wait for.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    environment = {**os.environ, "RAY_worker_niceness": "0"}
    subprocess.run(start, check=True, capture_output=True, env=environment)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        subprocess.run([*RAY, "stop", "--force"], check=False, capture_output=True)


def each_alone(recipes: Recipes, workload: Any, cpus: int, device: str, out: Path) -> list[Alone]:
    """Runs each recipe alone in a process of its own, started anew: a fork after torch may hang."""
    found = []
    for seed, (params, recipe) in enumerate(recipes):
        process = multiprocessing.get_context("spawn").Process(
            target=run_alone, args=(params, recipe, workload, cpus, device, seed, out)
        )
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"a run alone ended with exit code {process.exitcode}")
        found.append(Alone(*json.loads(out.read_text())))
    return found


def report(
    recipes: Recipes,
    alone: Sequence[float],
    relative: Sequence[float],
    searches: Sequence[Sequence[Shared]],
    *,
    load: bool,
) -> dict[str, Any]:
    """Prints the table and the comparisons; returns the figures.

    `alone` are the recipes' times alone [s], `relative` those over the reference steps beside them.
    """
    names = ("train_s", "first_s", "wall_s")
    words = ("training clock", "first window", "raw wall-clock")
    print(f"| recipe | alone [s] | {' | '.join(f'{w}, ratio' for w in words)} |")
    print("|---|---|---|---|---|")
    for number, ((params, _), alone_s) in enumerate(zip(recipes, alone, strict=True)):
        ratios = [[getattr(s[number], n) / alone_s for s in searches] for n in names]
        cells = [", ".join(f"{each:.3f}" for each in found) for found in ratios]
        print(f"| {describe_params(params)} | {alone_s:.3g} | {' | '.join(cells)} |")
    found = {
        name: _compare(word, alone, [[getattr(t, name) for t in trials] for trials in searches])
        for name, word in zip(names, words, strict=True)
    }
    if all(trial.reference_s for trials in searches for trial in trials):
        at_one_speed = [[t.train_s / t.reference_s for t in trials] for trials in searches]
        found["at_one_speed"] = _compare("training clock at one speed", relative, at_one_speed)
    for name in ("train_s", "at_one_speed"):
        print(_verdict(name, found[name], load=load) if name in found else "no reference steps")
    timings = Counter(trial.timing for trials in searches for trial in trials)
    print(f"clocks: {dict(timings)}")
    return {"rounds": len(searches), "load": load, "timings": timings, **found}


def _verdict(name: str, ours: Mapping[str, Any], *, load: bool) -> str:
    tau_bar, median_bar, single_bar = BARS[load]
    off = max(1 - ours["from_5"], ours["to_95"] - 1)
    held = (
        ours["tau"] >= tau_bar and abs(ours["median_ratio"] - 1) <= median_bar and off <= single_bar
    )
    bars = f"τ ≥ {tau_bar}, median within {median_bar:.0%}, 90 % within {single_bar:.0%}"
    return f"bar of {name} ({bars}): {'held' if held else 'missed'}"


def _compare(
    name: str, alone: Sequence[float], rounds: Sequence[Sequence[float]]
) -> dict[str, Any]:
    taus = [float(kendalltau(alone, times).statistic) for times in rounds]
    ratios = [t / alone_s for times in rounds for t, alone_s in zip(times, alone, strict=True)]
    low, middle, high = (float(each) for each in np.quantile(ratios, (0.05, 0.5, 0.95)))
    tau = statistics.fmean(taus)
    logs = np.log(np.array(rounds))
    differs = float(np.sqrt(logs.var(axis=0, ddof=1).mean())) if len(rounds) > 1 else float("nan")
    spread = f"90 % in {low:.3f} to {high:.3f}, n = {len(ratios)}"
    print(
        f"{name}: Kendall's τ {tau:.3f}, median ratio {middle:.3f} ({spread}); differs by"
        f" {differs:.3f} between rounds"
    )
    return {
        "tau": tau,
        "between_rounds": differs,
        "median_ratio": middle,
        "from_5": low,
        "to_95": high,
        "ratios": ratios,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", action="store_true", help="others are at work meanwhile")
    parser.add_argument("--phase", type=float, default=10.0, help="length of its phases [s]")
    parser.add_argument("--compile", action="store_true", help="one recipe more, compiled")
    parser.add_argument("--threads", type=int, default=1, help="of a trial on a CPU")
    parser.add_argument("--cotenants", type=int, default=2)
    parser.add_argument(
        "--gpu", action="store_true", help="on the first GPU; 4 co-tenants are usual"
    )
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    cpus = options.threads
    device = "cuda" if options.gpu else "cpu"
    tree = study(options.cotenants, cpus, gpu=options.gpu, compiled=options.compile)
    alone: list[list[Alone]] = []
    shared: list[list[Shared]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        cluster(cpus * options.cotenants, gpu=options.gpu) as address,
    ):
        for number in range(options.rounds):
            began = time.time()
            with loaded(options.phase if options.load else None):
                recipes, found = run_shared(tree, Path(name) / f"shared-{number}", address)
            shared.append(found)
            out = Path(name) / "alone.json"
            alone.append(each_alone(recipes, tree["workload"], cpus, device, out))
            print(f"round {number + 1}: {time.time() - began:.0f} s", file=sys.stderr)
    machine = platform.processor() or platform.machine()
    print(f"{machine}, {cpus} threads a trial, {options.cotenants} co-tenants")
    times, relative, waited = (
        [[getattr(each, name) for each in done] for done in alone] for name in Alone._fields
    )
    medians, usual = (
        [statistics.median(each) for each in zip(*rounds, strict=True)]
        for rounds in (times, relative)
    )
    figures = report(recipes, medians, usual, shared, load=options.load)
    figures["waited"] = statistics.median(share for done in waited for share in done)
    print(f"runs alone waited {figures['waited']:.1%} of their time for a core (median)")
    if options.rounds > 1:
        figures["noise"] = _compare("alone against alone", medians, times)
        figures["noise_at_one_speed"] = _compare("the same at one speed", usual, relative)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
