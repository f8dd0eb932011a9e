"""Images per second of our training loop against a plain PyTorch loop and timm's training script.

    python tests/benchmarks/bench_train_loop.py                  # CPU, about 30 minutes
    python tests/benchmarks/bench_train_loop.py --device cuda --steps 50 --ways graph compile \\
        --precisions fp32 bf16 fp16 --layouts nhwc --ours-set matmul_precision=high

All train the same model on the same random uint8 images in memory, without augmentation, each in a
process of its own, in which spans of a few steps run by turns. A ratio is that of the medians of
images per second, above 1.0 where ours is faster; beside it the quartiles of single rounds.

- `ours`: `train`, with the resident loader and what `--ours-set` says; `graph`, `compile` and
  `graph_compiled` are the same with `cuda_graph`, with `compile`, and with both.
- `minimal`: a hand-written loop over images that stay on the device; with `--allocator ours`, and
  our processes' malloc settings. `minimal_compiled`: with `torch.compile(mode="reduce-overhead")`.
- `timm`: what timm's train.py does in a micro-batch, with timm's own parts; the loss is read back
  in each, and images come one by one, by 4 workers (`timm_0`: none).
  Source: train.py of timm 1.0, github.com/huggingface/pytorch-image-models.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import timm.data
import timm.optim
import timm.scheduler
import timm.utils
import torch
import yaml
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from tune_speed.components.models import MODELS
from tune_speed.components.models.base import ModelConfig
from tune_speed.data.base import Images
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.split import Splits
from tune_speed.runtime.device import describe_device, resolve_device, set_up_process, synchronizer
from tune_speed.training.build import Job
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Target, Workload

RESNET18 = {"name": "resnet18"}
MODEL_FIELDS = {
    "resnet20": ("resnet20", {}),
    "resnet18": ("timm", RESNET18),
    "resnet18_cifar": ("timm", {**RESNET18, "stem": "cifar"}),
}
NUM_IMAGES, NUM_CLASSES, SIZE = 4096, 10, 32
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
LR, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4
TIMM_WORKERS = {"timm": 4, "timm_0": 0}
OTHERS = ("minimal", "minimal_compiled", *TIMM_WORKERS)
WAYS: dict[str, dict[str, Any]] = {
    "ours": {},
    "graph": {"cuda_graph": True},
    "compile": {"compile": True},
    "graph_compiled": {"cuda_graph": True, "compile": True},
}
"""Ways of ours to compute a step, as fields of the recipe."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--models", nargs="+", default=["resnet20", "resnet18"], choices=MODEL_FIELDS
    )
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--layouts", nargs="+", default=["nchw", "nhwc"], choices=["nchw", "nhwc"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=2, help="steps of one span")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--allocator", default="default", choices=["default", "ours"])
    parser.add_argument("--against", nargs="+", default=list(OTHERS), choices=OTHERS)
    parser.add_argument(
        "--ours-set", nargs="*", default=[], metavar="PATH=VALUE", help="fields of our recipe"
    )
    parser.add_argument("--ways", nargs="+", default=["ours"], choices=list(WAYS))
    parser.add_argument("--json", type=Path, help="also write the rows there")
    parser.add_argument("--side", choices=[*WAYS, *OTHERS], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.side:
        serve(arguments)
        return
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), batch {arguments.batch_size}")
    print(f"timm {timm.__version__}, {os.cpu_count()} cores; ours: {arguments.ours_set}")
    print(f"malloc of the minimal loop: {arguments.allocator}")
    print("model           precision layout   n   images/s: ours, other        ratio (quartiles)")
    rows = []
    for case in product(arguments.models, arguments.precisions, arguments.layouts):
        for row in compare(arguments, *case):
            rows.append(row._asdict())
            print(row.line(), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


class Row(NamedTuple):
    model: str
    precision: str
    layout: str
    way: str
    other: str
    rounds: int
    ours_per_s: float
    other_per_s: float
    ratio: float
    low: float
    high: float
    """Quartiles of the ratios of single rounds."""

    def line(self) -> str:
        return (
            f"{self.model:15} {self.precision:9} {self.layout:6} {self.rounds:3}"
            f" {self.ours_per_s:9.1f} {self.other_per_s:9.1f} {self.way:14} {self.other:16}"
            f" {self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})"
        )


def compare(
    arguments: argparse.Namespace, model: str, precision: str, layout: str
) -> Iterator[Row]:
    case = [model, "--precisions", precision, "--layouts", layout]
    sides = [*arguments.ways, *arguments.against]
    processes = {side: start(arguments, side, case) for side in sides}
    for process in processes.values():
        ask(process)  # The first span warms up.
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(arguments.rounds):
        for side in sides[:: 1 if number % 2 else -1]:
            seconds[side].append(ask(processes[side]))
    for process in processes.values():
        process.communicate()
    images = arguments.steps * arguments.batch_size
    per_s = {side: images / statistics.median(times) for side, times in seconds.items()}
    for way, other in product(arguments.ways, arguments.against):
        ratios = [o / u for o, u in zip(seconds[other], seconds[way], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        case_and_sides = (model, precision, layout, way, other, arguments.rounds)
        speeds = (per_s[way], per_s[other], per_s[way] / per_s[other])
        yield Row(*case_and_sides, *speeds, low, high)


def start(arguments: argparse.Namespace, side: str, case: list[str]) -> "subprocess.Popen[str]":
    options = ["device", "threads", "batch_size", "steps", "allocator"]
    command = [sys.executable, __file__, "--side", side, "--models", *case]
    for name in options:
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    command += ["--ours-set", *arguments.ours_set]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: "subprocess.Popen[str]") -> float:
    """Has the process train one span and returns its seconds."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def serve(arguments: argparse.Namespace) -> None:
    device = resolve_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    if arguments.side in WAYS or arguments.allocator == "ours":
        set_up_process(device, cpu_threads=arguments.threads)
    print(describe_device(device), file=sys.stderr)
    spans = SPANS[arguments.side](arguments, device)
    for _ in sys.stdin:
        print(next(spans), flush=True)


def random_images(count: int) -> Images:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, SIZE, SIZE, len(MEAN)), np.uint8)
    return Images(pixels, generator.integers(0, NUM_CLASSES, count))


def model_config(arguments: argparse.Namespace) -> ModelConfig:
    name, fields = MODEL_FIELDS[arguments.models[0]]
    return MODELS[name].model_validate(fields)


def our_tree(arguments: argparse.Namespace) -> dict[str, Any]:
    name, fields = MODEL_FIELDS[arguments.models[0]]
    rates = {"lr": LR, "momentum": MOMENTUM, "nesterov": True, "weight_decay": WEIGHT_DECAY}
    tree: dict[str, Any] = {
        "model": {name: fields},
        "optimizer": {"sgd": rates},
        "epochs": 100_000,
        "batch_size": arguments.batch_size,
        "precision": arguments.precisions[0],
        "channels_last": arguments.layouts[0] == "nhwc",
        **WAYS[arguments.side],
    }
    for setting in arguments.ours_set:
        path, _, value = setting.partition("=")
        *parents, last = path.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = yaml.safe_load(value)
    return tree


def our_spans(arguments: argparse.Namespace, device: torch.device) -> Iterator[float]:
    """Yields the seconds of the training clock between two evaluations."""
    batch_size = arguments.batch_size
    recipe = Recipe.model_validate(our_tree(arguments))
    workload = Workload(
        dataset=Digits(),  # Not asked: the images below are trained on.
        target=Target(value=1.0),
        max_train_s=1e9,
        eval_every_samples=arguments.steps * batch_size,
    )
    train_images, few = random_images(NUM_IMAGES), random_images(16)
    splits = Splits(train_images, few, few, MEAN, STD, NUM_CLASSES, split_hash="")
    before_s = 0.0
    for result in train(Job(workload, recipe, splits, seed=0, device=device)):
        yield result.clocks.train_s - before_s
        before_s = result.clocks.train_s


def plain_model(
    arguments: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, torch.memory_format]:
    is_nhwc = arguments.layouts[0] == "nhwc"
    memory_format = torch.channels_last if is_nhwc else torch.contiguous_format
    model = model_config(arguments).build(
        in_channels=len(MEAN), num_classes=NUM_CLASSES, image_size=SIZE
    )
    return model.to(device).to(memory_format=memory_format), memory_format


def autocast(arguments: argparse.Namespace, device: torch.device) -> torch.autocast:
    dtype = DTYPES.get(arguments.precisions[0])
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def make_scaler(arguments: argparse.Namespace, device: torch.device) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(device.type, enabled=arguments.precisions[0] == "fp16")


def minimal_spans(arguments: argparse.Namespace, device: torch.device) -> Iterator[float]:
    """Yields the seconds of the given number of steps of a plain PyTorch loop."""
    model, memory_format = plain_model(arguments, device)
    is_compiled = arguments.side == "minimal_compiled"
    if is_compiled:
        model.compile(mode="reduce-overhead")
    rates = {"lr": LR, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
    optimizer = torch.optim.SGD(model.parameters(), nesterov=True, fused=is_compiled, **rates)
    images = torch.from_numpy(random_images(NUM_IMAGES).pixels).permute(0, 3, 1, 2)
    images = images.contiguous(memory_format=memory_format).to(device)
    labels = torch.from_numpy(random_images(NUM_IMAGES).labels).to(device)
    mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (MEAN, STD))
    scaler = make_scaler(arguments, device)
    steps, synchronize, started = 0, synchronizer(device), time.perf_counter()
    while True:
        order = torch.randperm(NUM_IMAGES, device=device)
        for chosen in order.split(arguments.batch_size):
            batch = (images[chosen].float() / 255 - mean) / std
            with autocast(arguments, device):
                loss = functional.cross_entropy(model(batch), labels[chosen])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            steps += 1
            if steps % arguments.steps == 0:
                synchronize()
                yield time.perf_counter() - started
                started = time.perf_counter()


class InMemory(Dataset[Any]):
    """Images one by one, as torchvision's CIFAR-10 gives them: as PIL images, transformed."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self.transform: Callable[[Image.Image], Any] | None = None  # Set by `create_loader`.

    def __len__(self) -> int:
        return len(self._images.labels)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        image = Image.fromarray(self._images.pixels[number])
        assert self.transform is not None
        return self.transform(image), int(self._images.labels[number])


def timm_spans(arguments: argparse.Namespace, device: torch.device) -> Iterator[float]:
    """Yields the seconds of the given number of steps of a loop as that of timm's script."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.benchmark = True
    model, memory_format = plain_model(arguments, device)
    loader = timm.data.create_loader(
        InMemory(random_images(NUM_IMAGES)),
        input_size=(len(MEAN), SIZE, SIZE),
        batch_size=arguments.batch_size,
        is_training=True,
        no_aug=True,
        mean=MEAN,
        std=STD,
        num_workers=TIMM_WORKERS[arguments.side],
        device=device,
    )
    optimizer = timm.optim.create_optimizer_v2(
        model, opt="sgd", lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    scheduler, num_epochs = timm.scheduler.create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=100_000, updates_per_epoch=len(loader)
    )
    criterion = nn.CrossEntropyLoss().to(device)
    is_nhwc, scaler = arguments.layouts[0] == "nhwc", make_scaler(arguments, device)
    losses, data_s, step_s = (timm.utils.AverageMeter() for _ in range(3))
    updates, synchronize, started = 0, synchronizer(device), time.perf_counter()
    for epoch in range(num_epochs):
        model.train()
        waited_from = step_from = time.perf_counter()
        for images, labels in loader:
            if is_nhwc:
                images = images.contiguous(memory_format=memory_format)
            data_s.update(time.perf_counter() - waited_from)
            with autocast(arguments, device):
                loss = criterion(model(images), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.update(loss.item(), images.size(0))
            optimizer.zero_grad()
            updates += 1
            step_s.update(time.perf_counter() - step_from)
            scheduler.step_update(num_updates=updates, metric=losses.avg)
            waited_from = step_from = time.perf_counter()
            if updates % arguments.steps == 0:
                synchronize()
                yield time.perf_counter() - started
                started = waited_from = step_from = time.perf_counter()
        scheduler.step(epoch + 1)


SPANS = {
    **dict.fromkeys(WAYS, our_spans),
    "minimal": minimal_spans,
    "minimal_compiled": minimal_spans,
    **dict.fromkeys(TIMM_WORKERS, timm_spans),
}


if __name__ == "__main__":
    main()
