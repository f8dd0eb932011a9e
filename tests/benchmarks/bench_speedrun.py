"""The speed-run recipe: steps/s of our loop against a bare one of the same network.

    python tests/benchmarks/bench_speedrun.py                                   # CPU, 2 minutes
    python tests/benchmarks/bench_speedrun.py --device cuda --batch-size 2000 --steps 25

Both loops train speednet with frozen first filters on the same random uint8 images on the device:
shifts by up to two pixels, alternating flips, bf16, label smoothing, Muon for the convolutions, SGD
for the rest, and a triangle of rates. The bare loop is hand-written PyTorch. Each has a process of
its own, in which spans of a few steps run by turns; the other process waits meanwhile. The ratio is
that of the medians, above 1.0 where ours is faster; beside it the quartiles of single rounds.
`--allocator ours` gives the bare loop our trial processes' malloc settings too.
"""

import argparse
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.data.base import Images
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.split import Splits
from tune_speed.runtime.device import describe_device, resolve_device, set_up_process, synchronizer
from tune_speed.training.build import Job
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Target, Workload

LEAST_IMAGES, NUM_CLASSES, SIZE, PAD = 4096, 10, 32, 2
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
MUON_LR, MUON_MOMENTUM, HEAD_LR, BIAS_LR, SGD_MOMENTUM = 0.24, 0.6, 1.7, 106.0, 0.85
WEIGHT_DECAY, SMOOTHING, NEWTON_SCHULZ_STEPS = 0.016, 0.2, 3
WARMUP_FRAC, WARMUP_START, FINAL_FRAC = 0.23, 0.2, 0.07
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
LONG_RUN = 100_000
"""Epochs of a run that is broken off."""
SIDES = ("ours", "bare")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--widths", type=int, nargs=3, default=(64, 256, 256), help="of the groups")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--compile", action="store_true", help="both networks")
    parser.add_argument("--steps", type=int, default=2, help="steps of one span")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--allocator", default="default", choices=["default", "ours"])
    parser.add_argument("--bias-lr", type=float, default=BIAS_LR)
    parser.add_argument("--muon-lr", type=float, default=MUON_LR)
    parser.add_argument("--head-lr", type=float, default=HEAD_LR)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.side:
        serve(arguments)
    else:
        compare_speed(arguments)


def speednet_tree(arguments: argparse.Namespace) -> dict[str, Any]:
    widths = dict(zip(("width1", "width2", "width3"), arguments.widths, strict=True))
    muon = {
        "lr": arguments.muon_lr,
        "momentum": MUON_MOMENTUM,
        "newton_schulz_steps": NEWTON_SCHULZ_STEPS,
        "normalize_weights": True,
        "sgd_lr": arguments.head_lr,
        "bias_lr": arguments.bias_lr,
        "sgd_momentum": SGD_MOMENTUM,
        "weight_decay": WEIGHT_DECAY,
    }
    triangle = {
        "flat_frac": 0.0,
        "warmup_frac": WARMUP_FRAC,
        "warmup_start": WARMUP_START,
        "final_frac": FINAL_FRAC,
    }
    return {
        "model": {"speednet": widths},
        "optimizer": {"muon": muon},
        "lr_schedule": {"trapezoid": triangle},
        "batch_size": arguments.batch_size,
        "precision": "bf16",
        "label_smoothing": SMOOTHING,
        "augmentation": {"pad": PAD, "flip": "alternating"},
        "speedups": {"init": {"whitening": {"frozen": True}}, "views": {"tta": {"views": 6}}},
        "compile": arguments.compile,
        "cuda_graph": not arguments.compile and arguments.device != "cpu",
        "deterministic": False,
    }


# Steps per second.


def compare_speed(arguments: argparse.Namespace) -> None:
    print(f"torch {torch.__version__}, {arguments.threads} threads, batch {arguments.batch_size}")
    processes = {side: start(side) for side in SIDES}
    seconds: dict[str, list[float]] = {side: [] for side in processes}
    for number in range(arguments.rounds):
        for side in sorted(processes, reverse=number % 2 == 0):
            seconds[side].append(ask(processes[side]))
    for process in processes.values():
        process.communicate()
    first, second = (seconds[side] for side in SIDES)
    rates = [arguments.steps / statistics.median(each) for each in (first, second)]
    low, _, high = statistics.quantiles([b / a for a, b in zip(first, second, strict=True)], n=4)
    print(
        f"steps/s: ours {rates[0]:.2f}, bare {rates[1]:.2f}, ratio"
        f" {rates[0] / rates[1]:.3f} ({low:.3f} to {high:.3f}), n {arguments.rounds}; malloc of the"
        f" bare loop: {arguments.allocator}"
    )


def start(side: str) -> "subprocess.Popen[str]":
    command = [sys.executable, *sys.argv, "--side", side]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    ask(process)  # The first span warms up.
    return process


def ask(process: "subprocess.Popen[str]") -> float:
    """Has the process train one span and returns its seconds."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def serve(arguments: argparse.Namespace) -> None:
    device = resolve_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    if arguments.side != "bare" or arguments.allocator == "ours":
        set_up_process(device, cpu_threads=arguments.threads)
    print(describe_device(device), file=sys.stderr)
    spans = (bare_spans if arguments.side == "bare" else our_spans)(arguments, device)
    for _ in sys.stdin:
        print(next(spans), flush=True)


def num_images(batch_size: int) -> int:
    """Returns the images of an epoch, in whole batches: both sides count a ragged one as a step."""
    return math.ceil(LEAST_IMAGES / batch_size) * batch_size


def random_images(count: int) -> Images:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, SIZE, SIZE, len(MEAN)), np.uint8)
    return Images(pixels, generator.integers(0, NUM_CLASSES, count))


def our_recipe(arguments: argparse.Namespace) -> Recipe:
    return Recipe.model_validate({**speednet_tree(arguments), "epochs": LONG_RUN})


def our_spans(arguments: argparse.Namespace, device: torch.device) -> Iterator[float]:
    """Yields the seconds of the training clock between two evaluations."""
    workload = Workload(
        dataset=Digits(),  # Not asked: the images below are trained on.
        target=Target(value=1.0),
        max_train_s=1e9,
        eval_every_samples=arguments.steps * arguments.batch_size,
    )
    images, few = random_images(num_images(arguments.batch_size)), random_images(16)
    splits = Splits(images, few, few, MEAN, STD, NUM_CLASSES, split_hash="")
    before_s = 0.0
    for result in train(Job(workload, our_recipe(arguments), splits, seed=0, device=device)):
        yield result.clocks.train_s - before_s
        before_s = result.clocks.train_s


def bare_spans(arguments: argparse.Namespace, device: torch.device) -> Iterator[float]:
    """Yields the seconds of the given number of steps of a plain PyTorch loop."""
    torch.backends.cudnn.benchmark = True
    model = our_recipe(arguments).model.build(
        in_channels=len(MEAN), num_classes=NUM_CLASSES, image_size=SIZE
    )
    model = model.to(device).to(memory_format=torch.channels_last)
    model.conv.weight.requires_grad_(False)
    forward = torch.compile(model, dynamic=False) if arguments.compile else model
    convs = [p for name, p in model.blocks.named_parameters() if p.ndim == 4]
    biases = [p for p in model.parameters() if p.ndim == 1]
    sgd = torch.optim.SGD(
        [
            {"params": biases, "base": arguments.bias_lr, "weight_decay": 0.0},
            {"params": [model.classifier.weight], "base": arguments.head_lr},
        ],
        weight_decay=WEIGHT_DECAY / arguments.head_lr,
        momentum=SGD_MOMENTUM,
        nesterov=True,
        fused=True,
    )
    buffers = [torch.zeros_like(p) for p in convs]
    total = LONG_RUN * num_images(arguments.batch_size) // arguments.batch_size
    synchronize, started = synchronizer(device), time.perf_counter()
    for number, (images, labels) in enumerate(bare_batches(arguments.batch_size, device)):
        factor = triangle(number / total)
        with torch.autocast(device.type, torch.bfloat16):
            logits = forward(images)
        loss = functional.cross_entropy(logits.float(), labels, label_smoothing=SMOOTHING)
        loss.backward()
        for group in sgd.param_groups:
            group["lr"] = group["base"] * factor
        sgd.step()
        for weight, buffer in zip(convs, buffers, strict=True):
            muon_step(weight, buffer, lr=arguments.muon_lr * factor)
        model.zero_grad(set_to_none=True)
        if (number + 1) % arguments.steps == 0:
            synchronize()
            yield time.perf_counter() - started
            started = time.perf_counter()


def bare_batches(batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields shifted and flipped images, (B, C, H, W), and their labels, without an end."""
    count = num_images(batch_size)
    data = random_images(count)
    pixels = torch.from_numpy(data.pixels).to(device).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (MEAN, STD))
    padded = functional.pad((pixels - mean) / std, (PAD,) * 4, mode="reflect")
    padded = padded.permute(0, 2, 3, 1).contiguous()
    labels = torch.from_numpy(data.labels).to(device)
    is_flipped = torch.rand(count, device=device) < 0.5
    places = torch.arange(SIZE, device=device)
    while True:
        order = torch.randperm(count, device=device)
        for chosen in order.split(batch_size):
            shifts = torch.randint(0, 2 * PAD + 1, (2, len(chosen), 1), device=device)
            columns = torch.where(is_flipped[chosen, None], places.flip(0), places) + shifts[1]
            rows = (places + shifts[0])[:, :, None]
            images = padded[chosen[:, None, None], rows, columns[:, None, :]]
            yield images.permute(0, 3, 1, 2), labels[chosen]
        is_flipped = ~is_flipped


def triangle(share: float) -> float:
    if share < WARMUP_FRAC:
        return WARMUP_START + (1 - WARMUP_START) * share / WARMUP_FRAC
    return 1 - (1 - FINAL_FRAC) * (share - WARMUP_FRAC) / (1 - WARMUP_FRAC)


@torch.no_grad()
def muon_step(weight: nn.Parameter, buffer: Tensor, *, lr: float) -> None:
    """Scales a convolution's weight, and moves it by its orthogonalised Nesterov momentum."""
    gradient = weight.grad
    assert gradient is not None
    buffer.mul_(MUON_MOMENTUM).add_(gradient)
    x = gradient.add(buffer, alpha=MUON_MOMENTUM).reshape(len(weight), -1)
    x = x.bfloat16() if x.is_cuda else x
    x = x / (x.norm() + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    weight.mul_(math.sqrt(len(weight)) / weight.norm())
    weight.add_(x.view_as(weight).to(weight.dtype), alpha=-lr)


if __name__ == "__main__":
    main()
