"""Images per second of our training loop against a minimal hand-written PyTorch loop.

    python tests/benchmarks/bench_train_loop.py                  # CPU, about 10 minutes
    python tests/benchmarks/bench_train_loop.py --device cuda --steps 50

Both train the same model on the same random uint8 images in memory, at the same precision and
memory format. Each has a process of its own, in which spans of a few steps run by turns, ours
first in every other round; the other process waits meanwhile. The ratio is that of the medians of
images per second, ours over the minimal loop's: above 1.0, ours is faster. Beside it stand the
quartiles of the ratios of single rounds. `--allocator ours` gives the minimal loop the malloc
settings of our trial processes too, so that what is left is the loop alone.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional

from tune_speed.data.augment import Augmentation
from tune_speed.data.base import Images
from tune_speed.data.digits import Digits
from tune_speed.data.split import Splits
from tune_speed.device import describe_device, resolve_device, set_up_process, synchronizer
from tune_speed.models import MODELS, ModelConfig
from tune_speed.optim import Sgd
from tune_speed.recipe import Recipe
from tune_speed.train import train
from tune_speed.workload import Target, Workload

RESNET18 = {"name": "resnet18"}
MODEL_FIELDS = {
    "resnet20": ("resnet20", {}),
    "resnet18": ("timm", RESNET18),
    "resnet18_cifar": ("timm", {**RESNET18, "stem": "cifar"}),
}
NUM_IMAGES, NUM_CLASSES, SIZE = 4096, 10, 32
MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


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
    parser.add_argument("--side", choices=["ours", "minimal"], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.side:
        serve(arguments)
        return
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), batch {arguments.batch_size}")
    print(f"malloc of the minimal loop: {arguments.allocator}")
    print("model           precision layout   n   ours    minimal [images/s]  ratio (quartiles)")
    for model in arguments.models:
        for precision in arguments.precisions:
            for layout in arguments.layouts:
                print(compare(arguments, model, precision, layout), flush=True)


def compare(arguments: argparse.Namespace, model: str, precision: str, layout: str) -> str:
    """Returns a row of the table."""
    case = [model, "--precisions", precision, "--layouts", layout]
    processes = {side: start(arguments, side, case) for side in ("ours", "minimal")}
    seconds: dict[str, list[float]] = {side: [] for side in processes}
    for number in range(arguments.rounds):
        for side in sorted(processes, reverse=number % 2 == 0):
            seconds[side].append(ask(processes[side]))
    for process in processes.values():
        process.communicate()
    images = arguments.steps * arguments.batch_size
    ours, minimal = (images / statistics.median(seconds[side]) for side in ("ours", "minimal"))
    ratios = [m / o for m, o in zip(seconds["minimal"], seconds["ours"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return (
        f"{model:15} {precision:9} {layout:6} {arguments.rounds:3} {ours:8.1f} {minimal:8.1f}"
        f"             {ours / minimal:.3f} ({low:.3f} to {high:.3f})"
    )


def start(arguments: argparse.Namespace, side: str, case: list[str]) -> "subprocess.Popen[str]":
    options = ["device", "threads", "batch_size", "steps", "allocator"]
    command = [sys.executable, __file__, "--side", side, "--models", *case]
    for name in options:
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
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
    """Trains a span for each line that comes in."""
    device = resolve_device(arguments.device)
    torch.set_num_threads(arguments.threads)
    if arguments.side == "ours" or arguments.allocator == "ours":
        set_up_process(device, cpu_threads=arguments.threads)
    print(describe_device(device), file=sys.stderr)
    spans = {"ours": our_spans, "minimal": minimal_spans}[arguments.side](arguments, device)
    for _ in sys.stdin:
        print(next(spans), flush=True)


def random_images(count: int) -> Images:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, SIZE, SIZE, len(MEAN)), np.uint8)
    return Images(pixels, generator.integers(0, NUM_CLASSES, count))


def model_config(arguments: argparse.Namespace) -> ModelConfig:
    name, fields = MODEL_FIELDS[arguments.models[0]]
    return MODELS[name].model_validate(fields)


def our_spans(arguments: argparse.Namespace, device: torch.device) -> Iterator[float]:
    """Yields the seconds of the training clock between two evaluations."""
    batch_size = arguments.batch_size
    recipe = Recipe(
        model=model_config(arguments),
        optimizer=Sgd(lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
        epochs=100_000,
        batch_size=batch_size,
        precision=arguments.precisions[0],
        channels_last=arguments.layouts[0] == "nhwc",
        augmentation=Augmentation(),
    )
    workload = Workload(
        dataset=Digits(),  # Not asked: the images below are trained on.
        target=Target(value=1.0),
        max_train_s=1e9,
        eval_every_samples=arguments.steps * batch_size,
    )
    train_images, few = random_images(NUM_IMAGES), random_images(16)
    splits = Splits(train_images, few, few, MEAN, STD, NUM_CLASSES, split_hash="")
    before_s = 0.0
    for result in train(workload, recipe, splits, seed=0, device=device):
        yield result.clocks.train_s - before_s
        before_s = result.clocks.train_s


def minimal_spans(arguments: argparse.Namespace, device: torch.device) -> Iterator[float]:
    """Yields the seconds of the given number of steps of a plain PyTorch loop."""
    nhwc = arguments.layouts[0] == "nhwc"
    memory_format = torch.channels_last if nhwc else torch.contiguous_format
    model = model_config(arguments).build(
        in_channels=len(MEAN), num_classes=NUM_CLASSES, image_size=SIZE
    )
    model = model.to(device).to(memory_format=memory_format)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    images = torch.from_numpy(random_images(NUM_IMAGES).pixels).permute(0, 3, 1, 2)
    images = images.contiguous(memory_format=memory_format).to(device)
    labels = torch.from_numpy(random_images(NUM_IMAGES).labels).to(device)
    mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (MEAN, STD))
    steps, synchronize, started = 0, synchronizer(device), time.perf_counter()
    while True:
        order = torch.randperm(NUM_IMAGES, device=device)
        for chosen in order.split(arguments.batch_size):
            batch = (images[chosen].float() / 255 - mean) / std
            with torch.autocast(
                device.type, torch.bfloat16, enabled=arguments.precisions[0] == "bf16"
            ):
                loss = functional.cross_entropy(model(batch), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % arguments.steps == 0:
                synchronize()
                yield time.perf_counter() - started
                started = time.perf_counter()


if __name__ == "__main__":
    main()
