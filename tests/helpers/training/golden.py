"""Losses of short trainings of several kinds, to hold a change of the loop against.

    python -m helpers.training.golden losses.json             # in tests, before a change
    python -m helpers.training.golden --against losses.json   # after it, on the same machine

The second says whether every loss is the same to the last bit, and exits with 1 if not.

    python -m helpers.training.golden --keep

makes the present losses those that the tests ask for. They are computed with the instructions that
every x86-64 processor has: with others the sums come in another order, which after ten steps is
0.02 of a loss of 0.9, and 0.1 where the eigenvectors of whitening turn over.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from helpers.training.tiny import CPU, make_images, make_workload, to_end

from tune_speed.data.split import Splits, channel_statistics
from tune_speed.training.build import Job
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe

FILE = Path(__file__).with_name("golden_losses.json")
# Not 0, which a seed that was lost on the way might be too.
SEEDS = (1,)
NUM_IMAGES = 26
"""Two epochs are six steps, or four accumulated ones; the last batch of each is ragged."""
BASE: dict[str, Any] = {
    "model": "resnet20",
    "optimizer": {"sgd": {"lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4}},
    "lr_schedule": "one_cycle",
    "epochs": 2,
    "batch_size": 12,
}
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"batch_size": 5, "accumulation_steps": 3},
    "channels_first": {"channels_last": False},
    "bf16": {"precision": "bf16"},
    "clipped_adamw": {
        "optimizer": {"adamw": {"lr": 0.002}},
        "lr_schedule": "cosine",
        "clip_norm": 0.5,
        "label_smoothing": 0.1,
    },
    "muon": {"optimizer": {"muon": {"lr": 0.01}}},
    "augmented": {"augmentation": {"pad": 2, "flip": "alternating", "cutout": 4}},
    "streamed": {"loader": "dataloader", "augmentation": {"flip": "random"}},
    "stochastic_depth": {"speedups": {"depth": "stochastic_depth"}},
    "averaged": {"speedups": {"averaging": "ema", "views": "tta"}},
    "whitened": {"speedups": {"init": "whitening"}},
}
EVERYWHERE = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
}
"""Environment in which torch, MKL and oneDNN use what every x86-64 processor has."""


Losses = dict[str, list[list[float]]]
"""Of each recipe, by seed: training and validation loss of each evaluation, one after the other;
before the first step there is no training loss."""


def losses_of(name: str) -> list[list[float]]:
    images = make_images(NUM_IMAGES, size=8, channels=3)
    mean, std = channel_statistics(images.pixels)
    splits = Splits(images, images, images, mean, std, 3, split_hash="s" * 16)
    recipe = Recipe.model_validate({**BASE, **RECIPES[name]})
    runs = (
        to_end(train(Job(make_workload(), recipe, splits, seed=seed, device=CPU))) for seed in SEEDS
    )
    pairs = [[(e.train_loss, e.loss) for e in run.evaluations] for run in runs]
    return [[loss for pair in run for loss in pair if loss is not None] for run in pairs]


def losses_as_everywhere() -> Losses:
    """Returns every recipe's losses, computed in a process of its own as `EVERYWHERE` says."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "losses.json")
        command = [sys.executable, "-m", "helpers.training.golden", str(file)]
        tests = Path(__file__).parents[2]
        subprocess.run(command, cwd=tests, env=os.environ | EVERYWHERE, check=True)
        return dict(json.loads(file.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="to write")
    parser.add_argument("--against", type=Path, help="to compare with")
    parser.add_argument("--keep", action="store_true", help="for the tests")
    arguments = parser.parse_args()
    if arguments.keep:
        FILE.write_text(json.dumps(losses_as_everywhere(), indent=1) + "\n")
        return
    torch.set_num_threads(1)
    losses: Losses = {name: losses_of(name) for name in RECIPES}
    if arguments.file:
        arguments.file.write_text(json.dumps(losses, indent=1) + "\n")
    if arguments.against:
        before = json.loads(arguments.against.read_text())
        other = [name for name in RECIPES if losses[name] != before.get(name)]
        print(f"{len(RECIPES) - len(other)} of {len(RECIPES)} recipes have the same losses")
        sys.exit(f"others: {', '.join(other)}" if other else 0)


if __name__ == "__main__":
    main()
