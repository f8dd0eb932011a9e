"""What each way to compute a step is worth, and what `auto` makes of it.

    python tests/benchmarks/bench_step_choices.py                  # CPU, about 3 minutes
    python tests/benchmarks/bench_step_choices.py --device cuda

For each model and each field that may be `auto`: the median time of an optimizer step with each
value, the others at their defaults, in turns, on random images of 32 x 32 pixels; the ratio is that
of the default to the other one, above 1 the other one is quicker. `auto` is what the package
settles on in its own fraction of a second, and how long that took, models built and compiled
included. `gradients kept` is no field: it sets gradients to zero instead of dropping them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import repeat

import numpy as np
import torch

from tune_speed.data.base import Images
from tune_speed.data.split import Splits
from tune_speed.runtime.device import describe_device, resolve_device, set_up_process, synchronizer
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training.autotune.probe_step import probe_step
from tune_speed.training.autotune.step_options import CHOICES, provisional, quickest, step_times
from tune_speed.training.build import open_dummy
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.recorded import RECORDERS

MODELS = {
    "resnet20": "resnet20",
    "resnet18": {"timm": {"name": "resnet18", "stem": "cifar"}},
    "speednet": "speednet",
}
ALONE = Turnstile(None, why_not="alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=["resnet20", "resnet18"], choices=MODELS)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each comparison")
    parser.add_argument("--fields", nargs="+", default=[*CHOICES, "gradients kept"])
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    set_up_process(device, cpu_threads=arguments.threads)
    print(f"{describe_device(device)}, torch {torch.__version__}, batch {arguments.batch_size}")
    print("model      field              default [ms]  other [ms]  ratio   n   auto, settled in")
    for model in arguments.models:
        for field in arguments.fields:
            if field != "cuda_graph" or device.type in RECORDERS:
                print(row(arguments, model, field, device), flush=True)


def row(arguments: argparse.Namespace, model: str, field: str, device: torch.device) -> str:
    recipe = make_recipe(arguments, model)
    splits = random_splits(2 * arguments.batch_size)
    if field == "gradients kept":
        recipes, sets_to_none = [recipe, recipe], [True, False]
    else:
        recipes = [recipe.model_copy(update={field: value}) for value in CHOICES[field]]
        sets_to_none = [True, True]
    times = in_turns(recipes, sets_to_none, splits, device, seconds=arguments.seconds)
    default, other = (1e3 * statistics.median(each) for each in times)
    line = f"{model:10} {field:18} {default:10.2f} {other:12.2f} {default / other:8.3f}"
    line += f" {len(times[0]):4}"
    if field == "gradients kept":
        return line
    began_s = time.perf_counter()
    settled = quickest(step_times(recipes, splits, device=device, turnstile=ALONE))
    return f"{line}   {CHOICES[field][settled]}, {time.perf_counter() - began_s:.2f} s"


def make_recipe(arguments: argparse.Namespace, model: str) -> Recipe:
    fields = {
        "model": MODELS[model],
        "optimizer": {"sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}},
        "epochs": 1,
        "batch_size": arguments.batch_size,
        "precision": arguments.precision,
    }
    return provisional(Recipe.model_validate(fields))


def random_splits(count: int) -> Splits:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
    images = Images(pixels, np.arange(count) % 10)
    return Splits(images, images, images, (0.5,) * 3, (0.25,) * 3, 10, split_hash="")


def in_turns(
    recipes: list[Recipe],
    sets_to_none: list[bool],
    splits: Splits,
    device: torch.device,
    *,
    seconds: float,
) -> tuple[list[float], list[float]]:
    """Returns the seconds of each step of both, after a warm-up; every other round backwards."""
    synchronize = synchronizer(device)
    times: tuple[list[float], list[float]] = ([], [])
    with ExitStack() as stack:
        steps = [
            open_step(stack, recipe, splits, device, sets_to_none=none)
            for recipe, none in zip(recipes, sets_to_none, strict=True)
        ]
        for step in steps * 3:
            step()
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < seconds:
            for index in (0, 1) if len(times[0]) % 2 else (1, 0):
                synchronize()
                step_began_s = time.perf_counter()
                steps[index]()
                synchronize()
                times[index].append(time.perf_counter() - step_began_s)
    return times


def open_step(
    stack: ExitStack, recipe: Recipe, splits: Splits, device: torch.device, *, sets_to_none: bool
) -> Callable[[], object]:
    take = stack.enter_context(probe_step(recipe, splits, device=device, compiles=True))
    assert isinstance(recipe.batch_size, int)
    (batch,) = open_dummy(recipe, splits, num_samples=recipe.batch_size, device=device).epoch(0)

    def step() -> None:
        if sets_to_none:
            take(repeat(batch))
            return
        original = torch.optim.Optimizer.zero_grad
        torch.optim.Optimizer.zero_grad = lambda self, set_to_none=True: original(self, False)
        try:
            take(repeat(batch))
        finally:
            torch.optim.Optimizer.zero_grad = original

    return step


if __name__ == "__main__":
    main()
