"""What each change to training images costs on this machine, measured when it is asked for."""

import time
from typing import Any

import numpy as np
import torch

from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Batching
from tune_speed.data.loaders.configs import Resident
from tune_speed.data.orders import SampleOrder

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
"""What is measured of each change, by its place in a recipe's augmentation."""


def costs() -> dict[str, float]:
    """Returns what each change adds to a batch of 64 images at 128 px, on one thread [ms].

    Images are smooth, as photographs are, and of 128 px; but for a crop, which resizes them, of 147
    px. It is the least CPU time of five batches, less that of a batch without the change.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        plain = [_time_ms({}), _time_ms({})]
        times = {name: _time_ms(each) for name, each in EXAMPLES.items()}
        plain.append(_time_ms({}))
        return {name: round(max(0.0, ms - min(plain)), 1) for name, ms in times.items()}
    finally:
        torch.set_num_threads(num_threads)


def _time_ms(example: dict[str, Any]) -> float:
    places = np.arange(147 if "crop" in example else 128)
    waves = np.sin(places / 9 + np.arange(64)[:, None]) * 60 + 64
    pixels = (waves[:, :, None] + waves[:, None, :])[..., None].repeat(3, axis=3)
    images = Images(pixels.astype(np.uint8), np.zeros(64, dtype=np.int64))
    thirds, kind = (0.5, 0.5, 0.5), Augmentation.model_validate(example)
    batching = Batching(SampleOrder(64, 64, 0), thirds, thirds, torch.device("cpu"), kind)
    loader, times = Resident().open(images, batching._replace(image_size=128, num_classes=2)), []
    for epoch in range(5):
        (batch,) = loader.planned(epoch)
        start = time.thread_time()
        tuple(batch)
        times.append(time.thread_time() - start)
    loader.close()
    return 1000 * min(times)
