"""How well each loader keeps the device fed: images per second and fed ratio.

    python tests/benchmarks/bench_data_path.py                          # CPU, about 3 minutes
    python tests/benchmarks/bench_data_path.py --device cuda --steps 50 --rounds 20

The `resident` loader against `dataloader` with 0, 1 and 2 workers, each in a training of its own
with random uint8 images, pad-crop and flip, for a small and a large network. Spans of a few steps
of all trainings run by turns, in an order that turns over from round to round; the others stand
still meanwhile. Images per second are those of the median span, the ratio that of the medians to
`resident`'s, with the quartiles of single rounds. The fed ratio is that of the trainings' records:
the share of the training clock that did not go into waiting for a batch.
"""

import argparse
import os
import statistics
from collections.abc import Generator
from typing import Any

import numpy as np
import torch

from tune_speed.core.records import RunResult
from tune_speed.data.base import Images
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.split import Splits
from tune_speed.runtime.device import describe_device, resolve_device, set_up_process
from tune_speed.training.build import Job
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Target, Workload

NETWORKS: dict[str, Any] = {
    "small": {"plain_cnn": {"width": 8}},
    "resnet20": {"resnet20": {}},
    "large": {"timm": {"name": "resnet18"}},
}
NUM_IMAGES, NUM_CLASSES = 4096, 10
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", nargs="+", default=["small", "large"], choices=list(NETWORKS))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--pageable", action="store_true", help="also without pinned memory")
    parser.add_argument("--size", type=int, default=32, help="height and width [pixels]")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4, help="steps of one span")
    parser.add_argument("--rounds", type=int, default=15)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    device = resolve_device(arguments.device)
    set_up_process(device, cpu_threads=arguments.threads)
    print(f"{describe_device(device)}, {os.cpu_count()} cores, torch {torch.__version__}")
    print(f"{arguments.size} px, batch {arguments.batch_size}, n = {arguments.rounds} spans")
    print("network   loader                     images/s  fed ratio  ratio to resident (quartiles)")
    for network in arguments.networks:
        compare(arguments, network, device)


def loaders(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the loaders that are compared, by name; the first one is the measure."""
    pinning = [True, False] if arguments.pageable else [True]
    return {"resident": {"resident": {}}} | {
        f"dataloader, {workers} workers{'' if pins else ', pageable'}": {
            "dataloader": {"workers": workers, "pin_memory": pins}
        }
        for workers in arguments.workers
        for pins in pinning
    }


def compare(arguments: argparse.Namespace, network: str, device: torch.device) -> None:
    runs = {
        name: spans(arguments, network, loader, device)
        for name, loader in loaders(arguments).items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    fed: dict[str, float | None] = {}
    for run in runs.values():
        next(run)  # The first span warms up.
    for number in range(arguments.rounds):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            span_s, result = next(runs[name])
            seconds[name].append(span_s)
            fed[name] = result.fed_ratio
    for run in runs.values():
        run.close()
    for name, times in seconds.items():
        print(row(arguments, network, name, times, seconds["resident"], fed[name]), flush=True)


def row(
    arguments: argparse.Namespace,
    network: str,
    name: str,
    times: list[float],
    base: list[float],
    fed: float | None,
) -> str:
    per_s = arguments.steps * arguments.batch_size / statistics.median(times)
    ratio = statistics.median(base) / statistics.median(times)
    low, _, high = statistics.quantiles([b / t for b, t in zip(base, times, strict=True)], n=4)
    return f"{network:9} {name:25} {per_s:9.0f}  {fed:9.4f}  {ratio:.3f} ({low:.3f} to {high:.3f})"


def spans(
    arguments: argparse.Namespace, network: str, loader: Any, device: torch.device
) -> Generator[tuple[float, RunResult]]:
    """Yields the seconds of the training clock between two evaluations, and the result so far."""
    recipe = Recipe.model_validate(
        {
            "model": NETWORKS[network],
            "optimizer": {"sgd": {"lr": 0.01, "momentum": 0.9}},
            "epochs": 1000,
            "batch_size": arguments.batch_size,
            "augmentation": {"pad": 4, "flip": "random"},
            "loader": loader,
        }
    )
    workload = Workload(
        dataset=Digits(),  # Not asked: the images below are trained on.
        target=Target(value=1.0),
        max_train_s=1e9,
        eval_every_samples=arguments.steps * arguments.batch_size,
    )
    images, few = (random_images(count, arguments.size) for count in (NUM_IMAGES, 16))
    splits = Splits(images, few, few, MEAN, STD, NUM_CLASSES, split_hash="")
    before_s = 0.0
    for result in train(Job(workload, recipe, splits, seed=0, device=device)):
        yield result.clocks.train_s - before_s, result
        before_s = result.clocks.train_s


def random_images(count: int, size: int) -> Images:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, size, size, len(MEAN)), np.uint8)
    return Images(pixels, generator.integers(0, NUM_CLASSES, count))


if __name__ == "__main__":
    main()
