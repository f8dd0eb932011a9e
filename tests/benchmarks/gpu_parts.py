"""The parts of `on_gpu.py`: each returns rows of figures with their bars.

What the benchmarks of this folder measure is asked of them, by their own commands.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from gpu_bars import AIRBENCH, TIMM_TRAIN, airbench, short_trials, timm_script
from gpu_part import CIFAR10, HERE, SEARCHING, Options, Part, Row, command, timed, tune_speed
from torch import Tensor

from tune_speed.components.speedups.base import Shape
from tune_speed.core.records import RunResult
from tune_speed.core.targets import Target
from tune_speed.data.base import Images
from tune_speed.data.split import Splits
from tune_speed.runtime.cuda_context import context_gib
from tune_speed.runtime.device import (
    limit_memory,
    memory_limit_gib,
    release_memory,
    resolve_device,
    set_up_process,
)
from tune_speed.training.autotune.micro_batch import probe_step
from tune_speed.training.build import build_forward, build_model, open_loader, set_seed
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import Group, Stepper
from tune_speed.training.trial import Allotment, TrialSpec
from tune_speed.training.workload import Workload

GIB = 1024**3
FRACTION = 0.25
TESTING = ("pytest", "hypothesis", "timm", "torchvision")


def recipe_of(options: Options, **fields: Any) -> Recipe:
    tree = {
        "model": "resnet20",
        "optimizer": {"sgd": {"lr": 0.05}},
        "epochs": 1,
        "batch_size": 128 if options.on_gpu else 8,
    }
    return Recipe.model_validate({**tree, **fields})


def random_splits(count: int) -> Splits:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
    images = Images(pixels, np.arange(count) % 10)
    return Splits(images, images, images, (0.5,) * 3, (0.25,) * 3, 10, split_hash="")


# (a)


def fractions(options: Options) -> list[Row]:
    """The device has a number, and torch keeps to the share without the context."""
    device = resolve_device("cuda")
    set_up_process(device, cpu_threads=1)
    context, total = context_gib(device), torch.cuda.get_device_properties(device).total_memory
    limit_memory(device, gpu_fraction=FRACTION)
    limit_gib = memory_limit_gib(device, gpu_fraction=FRACTION, cpu_fraction=1.0)
    fits = torch.empty(int(0.9 * limit_gib * GIB), dtype=torch.uint8, device=device)
    del fits
    torch.cuda.empty_cache()
    try:
        torch.empty(int(1.1 * limit_gib * GIB), dtype=torch.uint8, device=device)
        is_refused = False
    except torch.OutOfMemoryError:
        is_refused = True
    share = (limit_gib + context) * GIB / total
    return [
        Row("device", str(device), "has a number", device.index is not None),
        Row("CUDA context [GiB]", round(context, 3), "0.1 to 2", 0.1 < context < 2),
        Row("limit and context, of the GPU", round(share, 3), f"≤ {FRACTION}", share <= FRACTION),
        Row("more than the limit", "refused" if is_refused else "given", "refused", is_refused),
    ]


# (b)


def tests(options: Options) -> Iterator[Row]:
    """Runs the tests that need a GPU; those of each technique with each setting come last."""
    for name, chosen in (("alone", "not"), ("technique with setting", "")):
        file = options.folder / f"{name}.xml"
        failed, count, skipped = tested(file, f"{chosen} goes_with_each_setting".strip())
        held = failed == 0 and count > skipped
        yield Row(f"tests that failed, {name}", failed, "0", held, count - skipped)


def tested(file: Path, chosen: str) -> tuple[int, int, int]:
    """Returns how many tests failed, were there and were skipped.

    Raises: RuntimeError with pytest's last output, where no test was begun.
    """
    # Ours are for pytest-xdist, and leave the slow tests out, such as these; warnings of other
    # versions are no failures of a GPU.
    words = ["-o", "addopts=", "-o", "filterwarnings=default", "-p", "no:cacheprovider"]
    words += ["-q", "-rfE", "--tb=short", f"--junitxml={file}", "-k", chosen]
    words += ["-n", "4"] if find_spec("xdist") else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(HERE.parent / "runtime" / "test_cuda.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-1500:], flush=True)
    if not file.exists():
        raise RuntimeError(f"pytest: {done.returncode}: {(done.stdout + done.stderr)[-1000:]}")
    (suite,) = re.findall(r"<testsuite [^>]*>", file.read_text())
    counts = dict(re.findall(r'(\w+)="(\d+)"', suite))
    failed = int(counts["errors"]) + int(counts["failures"])
    return failed, int(counts["tests"]), int(counts["skipped"])


# (c)


def study_tree(options: Options, dataset: Any, *, trials: int, value: float) -> dict[str, Any]:
    """Returns a study with four trials at a time, each on a quarter of the GPU."""
    rate = {"low": 0.02, "high": 0.4, "log": True}
    return {
        "study": "on_gpu",
        "workload": {
            "dataset": dataset,
            "target": {"metric": "accuracy", "value": value},
            "split": {"validation_frac": 0.2},
        },
        "recipe": {
            "model": "resnet20",
            "optimizer": {"sgd": {"lr": rate}},
            "lr_schedule": "one_cycle",
            "epochs": {"low": 6, "high": 10},
            "batch_size": {"choices": [128, 256]},
            "cuda_graph": options.on_gpu,
        },
        "search": {
            "trials": trials,
            "concurrent": 4 if options.on_gpu else 2,
            "policy": "random",
            "seed": 1,
            "resources": {"cpu": 1, "gpu": FRACTION if options.on_gpu else 0},
        },
    }


def searched(options: Options, tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    (options.folder / "on_gpu.yaml").write_text(yaml.safe_dump(dict(tree)))
    tune_speed("search", "on_gpu.yaml", folder=options.folder, allowed=(0, 1))
    ledger = options.folder / "studies" / "on_gpu" / "ledger.jsonl"
    events = map(json.loads, ledger.read_text().splitlines())
    return [event["record"] for event in events if event["event"] == "finished"]


def search_rows(name: str, records: Sequence[Mapping[str, Any]], trials: int) -> list[Row]:
    runs, count = [record["runs"][-1] for record in records], len(records)
    failed = sum(run["status"] in ("failed", "oom") for run in runs)
    isolated = sum(run["timing"] == "isolated" for run in runs)
    shared = sum(bool(run["cotenants"]) for run in runs)
    limited = [run for run in runs if run["peak_memory_gib"] and run["memory_limit_gib"]]
    memory = max((run["peak_memory_gib"] / run["memory_limit_gib"] for run in limited), default=0.0)
    met = sum(run["status"] == "reached" for run in runs)
    return [
        Row(f"{name}: trials that ended", count, str(trials), count == trials, count),
        Row(f"{name}: failed or out of memory", failed, "0", failed == 0, count),
        Row(f"{name}: met the target", met, "", None, count),
        Row(f"{name}: step times isolated", isolated, "all", isolated == count, count),
        Row(f"{name}: had co-tenants", shared, "half at least", 2 * shared >= count, count),
        Row(f"{name}: largest share of its memory", round(memory, 3), "≤ 1", memory <= 1, count),
    ]


def search_digits(options: Options) -> list[Row]:
    trials = 8 if options.on_gpu else 2
    tree = study_tree(options, "digits", trials=trials, value=0.9)
    return search_rows("digits", searched(options, tree), trials)


def search_cifar10(options: Options) -> list[Row]:
    assert options.data is not None
    train, test = (str(options.data / file) for file in CIFAR10)
    dataset = {"name": "image_parquet", "train": train, "test": test}
    trials = 4 if options.on_gpu else 2
    tree = study_tree(options, dataset, trials=trials, value=0.6)
    tree["recipe"] |= {"epochs": {"low": 2, "high": 4}, "precision": "bf16"}
    if not options.on_gpu:
        tree["workload"]["split"] = {"train_samples": 256, "validation_samples": 100}
    return search_rows("cifar10-jpeg", searched(options, tree), trials)


# (d)


def shared(options: Options) -> list[Row]:
    """Kendall's τ and the median ratio of searched and lone times, by `bench_shared_clock.py`."""
    out = options.folder / "shared.json"
    bench = HERE / "bench_shared_clock.py"
    command(bench, "--gpu", "--cotenants", 4, "--rounds", 1, "--json", out)
    found = json.loads(out.read_text())["isolated"]
    tau, ratio, count = found["tau"], found["median_ratio"], len(found["ratios"])
    return [
        Row("Kendall's τ, shared and alone", round(tau, 3), "≥ 0.95", tau >= 0.95, count),
        Row("median ratio", round(ratio, 3), "0.95 to 1.05", abs(ratio - 1) <= 0.05, count),
    ]


# (e)


def loops(options: Options) -> Iterator[Row]:
    """Images/s of `train` against hand-written loops and timm's, by `bench_train_loop.py`."""
    for model in ("resnet20", "resnet18") if options.on_gpu else ("resnet20",):
        yield from loop_rows(options, model)


def loop_rows(options: Options, model: str) -> list[Row]:
    out = options.folder / f"{model}.json"
    words = ["--device", options.device, "--models", model, "--layouts", "nhwc", "--json", out]
    if options.on_gpu:
        words += ["--precisions", "bf16", "--ways", "graph", "graph_compiled"]
        words += ["--steps", 50, "--rounds", 9]
        words += ["--against", "minimal", "minimal_compiled", "timm"]
    else:
        words += ["--precisions", "fp32", "--batch-size", 64]
        words += ["--steps", 1, "--rounds", 2, "--against", "minimal"]
    # timm's loop lets matrix products use TF32.
    command(HERE / "bench_train_loop.py", *words, "--ours-set", "matmul_precision=high")
    return [
        Row(
            f"{row['model']}, {row['precision']}, {row['way']} over {row['other']}, images/s",
            f"{row['ours_per_s']:.0f} / {row['other_per_s']:.0f} = {row['ratio']:.3f}"
            f" ({row['low']:.3f} to {row['high']:.3f})",
            "≥ 1",
            row["ratio"] >= 1,
            row["rounds"],
        )
        for row in json.loads(out.read_text())
    ]


# (f)


def speedrun(options: Options) -> list[Row]:
    """Steps/s of the speed-run recipe against a bare loop, by `bench_speedrun.py`."""
    words = ["--device", "cuda", "--batch-size", 2000, "--steps", 25, "--rounds", 9]
    if not options.on_gpu:
        words = ["--batch-size", 128, "--steps", 1, "--rounds", 2, "--widths", 8, 8, 8]
    text = command(HERE / "bench_speedrun.py", *words)
    found = re.search(r"ratio ([\d.]+) \(.*\), n (\d+)", text)
    assert found is not None, text
    ratio = float(found[1])
    return [Row("speed-run over a bare loop, steps/s", ratio, "≥ 1", ratio >= 1, int(found[2]))]


# (g)


def memory(options: Options) -> list[Row]:
    """Peak and reserved memory over trials in one process, each with recordings of its own."""
    device = resolve_device(options.device)
    peaks, reserved = [], []
    for number in range(20 if options.on_gpu else 3):
        run = digits_trial(options, number, cuda_graph=options.on_gpu)
        assert run.status in ("reached", "missed"), run.stop_reason
        peaks.append(run.peak_memory_gib or 0.0)
        release_memory(device)
        reserved.append(torch.cuda.memory_reserved(device) / GIB if options.on_gpu else 0.0)
    growth = peaks[-1] / peaks[1]
    kept_gib = reserved[-1] - reserved[1]
    return [
        Row("last peak over the second", round(growth, 4), "≤ 1.01", growth <= 1.01, len(peaks)),
        Row("growth of what torch keeps [GiB]", round(kept_gib, 4), "≤ 0.01", kept_gib <= 0.01),
    ]


def digits_trial(options: Options, seed: int, **fields: Any) -> RunResult:
    spec = TrialSpec(
        study="on_gpu",
        trial_id=f"t{seed:04d}",
        params={},
        recipe=recipe_of(options, epochs=1 if options.on_gpu else 0.1, **fields),
        workload=Workload.model_validate({"dataset": "digits", "target": Target(value=0.999)}),
        workload_hash="w" * 8,
        space_hash="s" * 8,
        seed=seed,
        allotment=Allotment(device=options.device, gpu_fraction=float(options.on_gpu)),
    )
    return finish(run_trial(spec), on_report=lambda _: None).runs[0]


# (h)


def accumulation(options: Options) -> list[Row]:
    """Gradients of four micro-batches in true fp32: graph and compilation against none."""
    # cuDNN's default in fp32 is TF32, of 10 bits: kernels would differ more than the bars allow.
    torch.backends.cudnn.allow_tf32 = False
    ways: dict[str, dict[str, Any]] = {"graph": {"cuda_graph": True}, "compile": {"compile": True}}
    if not options.on_gpu:
        ways = {"again": {}}
    eager, *others = (gradients(options, **fields) for fields in ({}, *ways.values()))
    bars = {"graph": 1e-5, "compile": 1e-2, "again": 0.0}
    rows = []
    for name, other in zip(ways, others, strict=True):
        worst = max(
            float((a - b).norm() / a.norm().clamp_min(1e-12))
            for a, b in zip(eager, other, strict=True)
        )
        title = f"{name}: largest relative difference of a layer's gradient"
        rows.append(
            Row(title, f"{worst:.2g}", f"≤ {bars[name]:g}", worst <= bars[name], len(other))
        )
    return rows


def gradients(options: Options, **fields: Any) -> list[Tensor]:
    """Returns each weight's gradient, added up over four micro-batches: what a plain step moves."""
    device = resolve_device(options.device)
    # At a large rate a weight's rounding is nothing beside its step.
    optimizer = {"sgd": {"lr": 1024.0, "momentum": 0.0, "nesterov": False}}
    tree = {"accumulation_steps": 4, "matmul_precision": "highest", "optimizer": optimizer}
    recipe = recipe_of(options, **tree, **fields)
    splits, shape = random_splits(4 * micro_batch(recipe)), Shape(32, 32)
    set_seed(recipe, seed=0)
    model = build_model(recipe, splits, seed=0, device=device).train()
    stepper = Stepper(model, build_forward(model, recipe), recipe, device=device)
    loader = open_loader(recipe, splits.train, splits, seed=0, device=device)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    stepper.learn(Group(recipe.samples_per_step, loader.planned(0)), shape, frac=1.0)
    loader.close()
    return [(a - b.detach()) / 1024 for a, b in zip(before, model.parameters(), strict=True)]


def micro_batch(recipe: Recipe) -> int:
    assert isinstance(recipe.batch_size, int)
    return recipe.batch_size


# (i)


def syncs(options: Options) -> list[Row]:
    """How often the host waits for the GPU in ten steps."""
    rows = []
    for precision in ("fp32", "bf16", "fp16"):
        count = waits_in_steps(recipe_of(options, precision=precision), resolve_device("cuda"))
        has_bar = precision != "fp16"
        bar, held = ("0", count == 0) if has_bar else ("", None)
        rows.append(Row(f"waits in ten steps, {precision}", count, bar, held, 10))
    return rows


def waits_in_steps(recipe: Recipe, device: torch.device) -> int:
    import warnings

    splits = random_splits(16 * micro_batch(recipe))
    set_seed(recipe, seed=0)
    loader = open_loader(recipe, splits.train, splits, seed=0, device=device)
    with probe_step(recipe, splits, device=device) as take:
        batches = iter(loader.epoch(0))
        take(batches)
        torch.cuda.synchronize(device)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            for _ in range(10):
                take(batches)
            torch.cuda.set_sync_debug_mode("default")
    loader.close()
    return sum("called a synchronizing" in str(warning.message) for warning in seen)


# (j)


def concurrent(options: Options) -> list[Row]:
    """Trials an hour by how many run at a time, and what `concurrent: auto` chose."""
    return packing_rows("time slicing", (1, 2, 4), {})


def with_mps(options: Options) -> list[Row]:
    """The same under MPS."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        return [Row("MPS", "no nvidia-cuda-mps-control here: not run")]
    with mps(options.folder) as env:
        return packing_rows("MPS", (1, 4), env)


def packing_rows(name: str, at_once: Sequence[int], env: Mapping[str, str]) -> list[Row]:
    words = ["--gpu", "--rounds", 1, "--trials", 8, "--at-once", *at_once]
    text = command(HERE / "bench_packing.py", *words, env=env)
    share = re.search(r"auto over the best fixed: ([\d.]+)", text)
    assert share is not None, text
    rates = re.findall(r"^(\S+) *: (\d+) trials an hour, ([\d.]+)", text, re.MULTILINE)
    chosen = re.search(r"auto predicted (.*) and chose (\d+)", text)
    value = float(share[1])
    return [
        *(
            Row(f"{name}: trials/h, {way} at a time", f"{rate}; {gain} of one", n=8)
            for way, rate, gain in rates
        ),
        Row(f"{name}: auto over the best fixed, trials/h", value, "≥ 0.95", value >= 0.95),
        Row(f"{name}: auto chose", chosen[2] if chosen else "nothing was measured"),
    ]


@contextmanager
def mps(folder: Path) -> Iterator[dict[str, str]]:
    """Starts MPS for this user, with pipes in a folder; ends it afterwards."""
    env = {f"CUDA_MPS_{name}_DIRECTORY": str(folder / name) for name in ("PIPE", "LOG")}
    control = ["nvidia-cuda-mps-control"]
    subprocess.run([*control, "-d"], env={**os.environ, **env}, check=True)
    try:
        yield env
    finally:
        subprocess.run(control, input="quit\n", text=True, env={**os.environ, **env}, check=False)


# (k)


def profile(options: Options) -> list[Row]:
    """Whether a profile's phases come to its step."""
    tree = {
        "workload": "digits",
        "recipe": recipe_of(options).model_dump(mode="json"),
        "run": {"device": options.device},
    }
    (options.folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    found = json.loads(
        tune_speed("profile", "recipe.yaml", "--steps", 20, "--json", folder=options.folder)
    )
    times = found["times"]
    ratio = times["profiled_step_ms"] / times["step_ms"]
    return [
        Row("a step [ms]", round(times["step_ms"], 3), n=times["num_steps"]),
        Row("phases over the step", round(ratio, 3), "0.8 to 3", 0.8 <= ratio <= 3),
        Row("pieces of advice", len(found["advice"])),
    ]


# (l)


def certify(options: Options) -> list[Row]:
    """Searched, then certified: the same recipe's step time, isolated and alone."""
    with timed("search") as search_s:
        records = searched(options, study_tree(options, "digits", trials=4, value=0.8))
    seeds = 2 if options.on_gpu else 1
    words = ["--top", 1, "--seeds", seeds, "--final", 0, "--json"]
    with timed("certify") as certify_s:
        tune_speed("certify", "on_gpu", *words, folder=options.folder)
    ledger = options.folder / "studies" / "on_gpu" / "certify-1.jsonl"
    events = map(json.loads, ledger.read_text().splitlines())
    runs = [event["record"]["runs"][-1] for event in events if event["event"] == "run"]
    best = min(
        (r for r in records if r["runs"][-1]["time_to_target_s"]),
        key=lambda record: record["runs"][-1]["time_to_target_s"],
    )["runs"][-1]
    ratio = statistics.median(run["step_time_ms"] for run in runs) / best["step_time_ms"]
    exclusive, is_near = sum(run["timing"] == "exclusive" for run in runs), abs(ratio - 1) <= 0.01
    return [
        Row("certified runs alone", exclusive, "all", exclusive == len(runs), len(runs)),
        Row("certified step over estimate", round(ratio, 4), "0.99 to 1.01", is_near),
        Row("the search [s]", search_s[0], n=len(records)),
        Row("certify [s]", certify_s[0], n=len(runs)),
    ]


PARTS = {
    "fractions": Part("indexed device and memory fraction", fractions, 60, 10),
    "tests": Part("tests/runtime/test_cuda.py", tests, 200, 30, TESTING),
    "digits": Part("search, four at 0.25", search_digits, 60, 30, SEARCHING, can_rehearse=True),
    "cifar10": Part(
        "search, four at 0.25", search_cifar10, 80, 30, SEARCHING, CIFAR10, can_rehearse=True
    ),
    "shared": Part("shared against alone", shared, 90, 40, (*SEARCHING, "scipy")),
    "graphs": Part("loops, graph and compile", loops, 300, 40, ("timm",), can_rehearse=True),
    "speedrun": Part("speed-run, bare loop", speedrun, 50, 20, can_rehearse=True),
    "memory": Part("twenty trials in a process", memory, 50, 15, can_rehearse=True),
    "accumulation": Part("graph, compile, eager", accumulation, 60, 15, can_rehearse=True),
    "syncs": Part("waits for the GPU", syncs, 40, 10),
    "concurrent": Part("concurrent: auto", concurrent, 300, 90, SEARCHING),
    "profile": Part("profile of a step", profile, 40, 15, can_rehearse=True),
    "certify": Part("certification", certify, 150, 60, SEARCHING, can_rehearse=True),
    "timm_script": Part(
        "timm's training script as it is",
        timm_script,
        300,
        60,
        ("timm", "torchvision", "pyarrow"),
        CIFAR10,
        (TIMM_TRAIN,),
        can_rehearse=True,
    ),
    "airbench": Part(
        "airbench94_muon as it is",
        airbench,
        480,
        150,
        ("torchvision", "pyarrow"),
        CIFAR10,
        (AIRBENCH,),
        can_rehearse=True,
    ),
    "short_trials": Part(
        "two-second trainings, four at 0.25", short_trials, 240, 40, SEARCHING, can_rehearse=True
    ),
    "mps": Part("concurrent: auto under MPS", with_mps, 240, 40, SEARCHING),
}
"""By name, in the order in which they run."""
