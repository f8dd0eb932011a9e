"""What it costs to hand a training function its `run`: against the bare loop, and against ours.

    python tests/benchmarks/bench_own_loop.py                       # CPU, about 4 minutes
    python tests/benchmarks/bench_own_loop.py --device cuda --steps 300

One plain PyTorch loop trains a network on scikit-learn's digits in three ways: `bare`, with a clock
of its own around it; `own`, called by `run_own_trial` as a search calls it, with `run.timed()`,
`run.step()` after each optimizer step and ten times `run.evaluated()`; `ours`, the same network
(`resnet20` alone), batch and optimizer as a recipe in our training loop.

They run by turns in one process. A ratio is that of the medians of training seconds, `own` over the
other's; beside it the quartiles of single rounds. The network `mlp` has steps of some 0.2 ms, so
that an overhead of 1 µs a step would be 0.5 %.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from tune_speed.components.models import MODELS
from tune_speed.custom import OwnRun
from tune_speed.custom.spec import OwnRecipe, OwnSpec, OwnTask
from tune_speed.custom.trial import run_own_trial
from tune_speed.runtime.device import describe_device, resolve_device, set_up_process, synchronizer
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, TrialSpec
from tune_speed.training.workload import Target, Workload

BATCH_SIZE, NUM_TRAIN, EVALUATIONS = 64, 1088, 10
LR, MOMENTUM = 0.05, 0.9


def digits(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images (N, 1, 8, 8) and labels (N,) on the device."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32, device=device).view(-1, 1, 8, 8) / 16
    return images[:NUM_TRAIN], torch.tensor(labels, device=device)[:NUM_TRAIN]


def network(name: str, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    if name == "mlp":
        layers = (nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        return nn.Sequential(*layers).to(device)
    model: nn.Module = MODELS[name]().network(in_channels=1, num_classes=10, image_size=8)
    return model.to(device, memory_format=torch.channels_last)


def loop(name: str, *, steps: int, device: torch.device, run: OwnRun | None) -> float:
    images, labels = digits(device)
    model, synchronize = network(name, device), synchronizer(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, fused=True)
    for _ in range(3):  # Warm-up, as our loop has one.
        functional.cross_entropy(model(images[:BATCH_SIZE]), labels[:BATCH_SIZE]).backward()
        optimizer.zero_grad()
    synchronize()
    began_s = time.perf_counter()
    with run.timed() if run is not None else nullcontext():
        for step in range(1, steps + 1):
            chosen = torch.randint(NUM_TRAIN, (BATCH_SIZE,), device=device)
            functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if run is not None:
                run.step()
                if step % max(1, steps // EVALUATIONS) == 0:
                    run.evaluated(step=step, metric=0.0)
    synchronize()
    return time.perf_counter() - began_s


def allotment(device: torch.device, threads: int) -> Allotment:
    gpu = float(device.type == "cuda")
    return Allotment(device=device.type, cpu_threads=threads, gpu_fraction=gpu)


def own_s(name: str, *, steps: int, device: torch.device, threads: int) -> float:
    task = OwnTask(function="loop", function_hash="", target=Target(value=1.0), max_train_s=1e6)
    spec = OwnSpec(
        study="bench",
        trial_id="t0000",
        params={},
        recipe=OwnRecipe(params={}),
        workload=task,
        workload_hash="",
        space_hash="",
        seed=0,
        allotment=allotment(device, threads),
    )
    record = run_own_trial(spec, lambda _, run: loop(name, steps=steps, device=device, run=run))
    assert record.runs[0].steps == steps, record.runs[0].traceback
    return record.runs[0].clocks.train_s


def ours_s(name: str, *, steps: int, device: torch.device, threads: int) -> float:
    recipe = Recipe.model_validate(
        {
            "model": name,
            "optimizer": {"sgd": {"lr": LR, "momentum": MOMENTUM}},
            "epochs": steps * BATCH_SIZE / NUM_TRAIN,
            "batch_size": BATCH_SIZE,
        }
    )
    split = {"validation_frac": 0.2, "train_samples": NUM_TRAIN, "validation_samples": 100}
    workload = Workload.model_validate(
        {
            "dataset": "digits",
            "split": split,
            "target": {"value": 1.0},
            "max_train_s": 1e6,
            "eval_every_samples": max(1, steps // EVALUATIONS) * BATCH_SIZE,
        }
    )
    spec = TrialSpec(
        study="bench",
        trial_id="t0001",
        params={},
        recipe=recipe,
        workload=workload,
        workload_hash="",
        space_hash="",
        seed=0,
        allotment=allotment(device, threads),
    )
    record = finish(run_trial(spec), on_report=lambda record: None)
    assert record.runs[0].steps == steps, record.runs[0].traceback
    return record.runs[0].clocks.train_s


def timed(contestants: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each in every round; the first round, a warm-up, is left out."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        names = list(contestants) if number % 2 else list(reversed(contestants))
        for name in names:
            seconds[name].append(contestants[name]())
    return {name: values[1:] for name, values in seconds.items()}


def show(name: str, seconds: dict[str, list[float]], *, steps: int) -> None:
    for other in seconds:
        if other == "own":
            continue
        ratio = statistics.median(seconds["own"]) / statistics.median(seconds[other])
        single = [a / b for a, b in zip(seconds["own"], seconds[other], strict=True)]
        low, _, high = statistics.quantiles(single, n=4)
        step_ms = 1000 * statistics.median(seconds[other]) / steps
        print(
            f"{name:9} own / {other:4}  {ratio:.3f}  ({low:.3f} to {high:.3f} in {len(single)}"
            f" rounds; a step of {other} takes {step_ms:.3f} ms)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100, help="of resnet20; mlp: 30 times as many")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    device = resolve_device(options.device)
    set_up_process(device, cpu_threads=options.threads)
    print(f"{describe_device(device)}, torch {torch.__version__}", flush=True)
    for name, steps in (("mlp", 30 * options.steps), ("resnet20", options.steps)):
        common: dict[str, Any] = {"steps": steps, "device": device}
        contestants = {
            "bare": lambda name=name, common=common: loop(name, run=None, **common),
            "own": lambda name=name, common=common: own_s(name, threads=options.threads, **common),
        }
        if name in MODELS:
            contestants["ours"] = lambda name=name, common=common: ours_s(
                name, threads=options.threads, **common
            )
        show(name, timed(contestants, options.rounds), steps=steps)


if __name__ == "__main__":
    main()
