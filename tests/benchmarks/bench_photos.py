"""Photographs from the folder to the batch: decoding, feeding, memory, first and second start.

    python tests/benchmarks/bench_photos.py decode --photos FOLDER     # a few minutes each
    python tests/benchmarks/bench_photos.py feed --photos FOLDER
    python tests/benchmarks/bench_photos.py changes
    python tests/benchmarks/bench_photos.py start --photos FOLDER
    python tests/benchmarks/bench_photos.py start --made 100000

FOLDER has `train/`, a folder of JPEG files a class. `decode`: images a second of the cache's build
with one and with two processes, next to Pillow and torchvision alone on one thread, which read and
scale the same files. `feed`: images a second of each way to feed at 128 and 224 pixels with
random-resized-crop and flips, next to timm's `create_loader` and torch's `DataLoader` with the same
changes and two workers, nothing trained meanwhile. Sides run by turns; shown are medians, and the
ratio of medians to the first side. `changes`: what each change to training images adds to a batch.
`start`: seconds and peak memory of the first and the second
start of a process that prepares the set.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import timm.data
import torch
from PIL import Image
from torchvision import datasets, io
from torchvision.transforms import v2

from tune_speed.data import cache
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.augmentation.crops import RandomResized
from tune_speed.data.base import Images
from tune_speed.data.datasets.image_folder import ImageFolder
from tune_speed.data.loaders.base import Batching, Loader
from tune_speed.data.loaders.configs import LoaderConfig, Resident, Streaming
from tune_speed.data.orders import SampleOrder

CPU = torch.device("cpu")
MEAN = STD = (0.5, 0.5, 0.5)
BATCH_SIZE = 64
MARGIN = 1.15
Side = Callable[[], float]
"""Returns images a second of one turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=[*PARTS])
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--made", type=int, default=0, help="so many made images instead")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 224])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, torch {torch.__version__}, timm {timm.__version__}")
    PARTS[arguments.part](arguments)


def compare(sides: dict[str, Side], rounds: int) -> None:
    """Runs the sides by turns, and prints the median of each and its ratio to the first."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        names = list(sides) if number % 2 else list(reversed(sides))
        for name in names:
            found[name].append(sides[name]())
    medians = {name: statistics.median(values) for name, values in found.items()}
    first = next(iter(medians.values()))
    for name, median in medians.items():
        print(f"{name:<34} {median:8.0f} images/s  {median / first:5.2f}  n = {rounds}")


def decode(arguments: argparse.Namespace) -> None:
    files = sorted((arguments.photos / "train").glob("*/*"))
    torch.set_num_threads(1)
    for size in arguments.sizes:
        side = round(MARGIN * size)
        print(f"stored at {side} px, {len(files)} files")

        def alone(read: Callable[[Path, int], object], side: int = side) -> float:
            some, began = files[::4], time.perf_counter()
            for file in some:
                read(file, side)
            return len(some) / (time.perf_counter() - began)

        def built(workers: int, side: int = side) -> float:
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                os.sched_setaffinity(0, range(workers))
                data = cache.prepare(folder_of(arguments, side), cache_dir=Path(folder))
                os.sched_setaffinity(0, range(os.cpu_count() or 1))
                count = sum(len(part.labels) for part in (data.train, data.test) if part)
                return count / (time.perf_counter() - began)

        compare(
            {
                "Pillow alone, one thread": lambda: alone(by_pillow),
                "torchvision alone, one thread": lambda: alone(by_torchvision),
                "our build on one core": lambda: built(1),
                "our build on two cores": lambda: built(2),
            },
            arguments.rounds,
        )


def by_pillow(file: Path, side: int) -> object:
    with Image.open(file) as image:
        scale = side / min(image.size)
        return np.asarray(image.convert("RGB").resize([round(scale * n) for n in image.size], 2))


def by_torchvision(file: Path, side: int) -> object:
    return v2.functional.resize(io.decode_image(str(file), io.ImageReadMode.RGB), [side])


def folder_of(arguments: argparse.Namespace, side: int, **fields: Any) -> ImageFolder:
    return ImageFolder(root=str(arguments.photos), store_size=side, **fields)


def feed(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    for size in arguments.sizes:
        side = round(MARGIN * size)
        print(f"{size} px, batches of {BATCH_SIZE}")
        with tempfile.TemporaryDirectory() as folder:
            pixels = cache.prepare(folder_of(arguments, side), cache_dir=Path(folder)).train
            jpeg = cache.prepare(
                folder_of(arguments, side, store="jpeg"), cache_dir=Path(folder)
            ).train
            sides = {
                "timm's loader, 2 workers": (timms(arguments, size), len(pixels.labels)),
                "torch's DataLoader, 2 workers": (torchs(arguments, size), len(pixels.labels)),
                "resident": ours(Resident(), pixels, size),
                "mapped, 0 workers": ours(Streaming(), pixels, size),
                "mapped, 2 workers": ours(Streaming(workers=2), pixels, size),
                "encoded, 0 workers": ours(Streaming(), jpeg, size),
                "encoded, 2 workers": ours(Streaming(workers=2), jpeg, size),
            }
            compare(
                {name: lambda b=batches: epoch_of(b) for name, (batches, _) in sides.items()},
                arguments.rounds,
            )


def epoch_of(batches: Callable[[], Iterator[Any]]) -> float:
    began, count = time.perf_counter(), 0
    for images, _ in batches():
        count += len(images)
    return count / (time.perf_counter() - began)


def timms(arguments: argparse.Namespace, size: int) -> Callable[[], Iterator[Any]]:
    loader = timm.data.create_loader(
        timm.data.ImageDataset(str(arguments.photos / "train")),
        input_size=(3, size, size),
        batch_size=BATCH_SIZE,
        is_training=True,
        use_prefetcher=False,
        scale=(0.08, 1.0),
        ratio=(3 / 4, 4 / 3),
        hflip=0.5,
        color_jitter=None,
        interpolation="bilinear",
        mean=MEAN,
        std=STD,
        num_workers=2,
        persistent_workers=True,
    )
    return lambda: iter(loader)


def torchs(arguments: argparse.Namespace, size: int) -> Callable[[], Iterator[Any]]:
    changes = v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    dataset = datasets.ImageFolder(
        str(arguments.photos / "train"),
        changes,
        loader=lambda path: io.decode_image(path, io.ImageReadMode.RGB),
    )
    loader = torch.utils.data.DataLoader(
        dataset, BATCH_SIZE, shuffle=True, num_workers=2, persistent_workers=True
    )
    return lambda: iter(loader)


def ours(config: LoaderConfig, images: Images, size: int) -> tuple[Callable[[], Any], int]:
    augmentation = Augmentation(crop=RandomResized(), flip="random")
    order = SampleOrder(len(images.labels), BATCH_SIZE, 0)
    batching = Batching(order, MEAN, STD, CPU, augmentation, image_size=size)
    loader: Loader = config.open(images, batching)
    epochs = iter(range(10**6))
    return lambda: loader.epoch(next(epochs)), len(images.labels)


EXAMPLES: dict[str, dict[str, Any]] = {
    "crop: random_resized": {"crop": "random_resized"},
    "pad": {"pad": 4},
    "flip": {"flip": "random"},
    "affine": {"affine": 0.05},
    "cutout": {"cutout": 32},
    "auto: rand_augment": {"auto": "rand_augment"},
    "auto: trivial_augment": {"auto": "trivial_augment"},
    "color_jitter": {"color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}},
    "erasing": {"erasing": {"probability": 0.25}},
    "mixup": {"mixup": 0.2},
    "cutmix": {"cutmix": 1.0},
}


def changes(arguments: argparse.Namespace) -> None:
    """Prints what each change adds to a batch of 64 images at 128 px: least CPU time of rounds."""
    torch.set_num_threads(1)
    plain = min(batch_ms({}, arguments.rounds), batch_ms({}, arguments.rounds))
    for name, example in EXAMPLES.items():
        print(f"{name:<24} {batch_ms(example, arguments.rounds) - plain:6.1f} ms")


def batch_ms(example: dict[str, Any], rounds: int) -> float:
    places = np.arange(147 if "crop" in example else 128)
    waves = np.sin(places / 9 + np.arange(64)[:, None]) * 60 + 64
    pixels = (waves[:, :, None] + waves[:, None, :])[..., None].repeat(3, axis=3)
    images = Images(pixels.astype(np.uint8), np.zeros(64, dtype=np.int64))
    kind = Augmentation.model_validate(example)
    batching = Batching(SampleOrder(64, 64, 0), MEAN, STD, CPU, kind)
    loader = Resident().open(images, batching._replace(image_size=128, num_classes=2))
    times = []
    for epoch in range(rounds):
        (batch,) = loader.planned(epoch)
        began = time.thread_time()
        tuple(batch)
        times.append(time.thread_time() - began)
    loader.close()
    return 1000 * min(times)


def start(arguments: argparse.Namespace) -> None:
    """Prepares the set in two processes, one after the other, with one cache."""
    with tempfile.TemporaryDirectory() as folder:
        photos = arguments.photos
        if arguments.made:
            photos = Path(folder) / "made"
            make_photos(photos, arguments.made)
        for name in ("first", "second", "third"):
            command = [sys.executable, __file__, "prepare", "--photos", str(photos)]
            done = subprocess.run(
                command,
                env={**os.environ, "TUNE_SPEED_CACHE": str(Path(folder) / "cache")},
                capture_output=True,
                text=True,
                check=True,
            )
            said = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{name:<7} {said['count']:,} images: {said['seconds']:.2f} s, peak"
                f" {said['own_gib']:.2f} GiB above the imports, workers {said['workers_gib']:.2f}"
            )


def prepare(arguments: argparse.Namespace) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    is_over, of_workers = threading.Event(), [0.0]

    def sample() -> None:
        while not is_over.wait(0.1):
            with suppress(psutil.Error):
                sizes = [worker.memory_info().rss for worker in psutil.Process().children()]
                of_workers[0] = max(of_workers[0], sum(sizes) / 2**30)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    began = time.perf_counter()
    data = cache.prepare(folder_of(arguments, round(MARGIN * arguments.sizes[0])))
    seconds = time.perf_counter() - began
    is_over.set()
    thread.join()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    count = sum(len(part.labels) for part in (data.train, data.test) if part)
    said = {"count": count, "seconds": seconds, "own_gib": grown / 2**20}
    print(json.dumps(said | {"workers_gib": of_workers[0]}))


def make_photos(folder: Path, count: int) -> None:
    """Writes small JPEG files of ten classes, no two alike."""
    rng = np.random.default_rng(0)
    for label in range(10):
        (folder / "train" / str(label)).mkdir(parents=True)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        image = coarse.resize((240, 180), Image.Resampling.BICUBIC)
        image.save(folder / "train" / str(number % 10) / f"{number:06}.jpg", quality=85)


PARTS = {
    "decode": decode,
    "feed": feed,
    "changes": changes,
    "start": start,
    "prepare": prepare,
}

if __name__ == "__main__":
    main()
