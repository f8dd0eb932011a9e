"""A LightningModule, searched: `python lightning_digits.py`, or for two trials
`python lightning_digits.py 2`.

Needs `pip install 'tune_speed[lightning]'`.
"""

import sys
from functools import cache
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

import tune_speed
from tune_speed.custom import OwnRun
from tune_speed.custom.lightning import SpeedCallback

SPACE = {
    "lr": {"low": 0.001, "high": 0.1, "log": True},
    "width": {"choices": [16, 32]},
    "batch_size": {"choices": [32, 64]},
}


class SmallNet(LightningModule):
    """A CNN for images of 8 × 8 pixels that logs `val_acc`."""

    def __init__(self, *, width: int, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(width * 16, 10),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Returns the loss of a batch."""
        images, labels = batch
        return cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs what `SpeedCallback` reports."""
        images, labels = batch
        logits = self.layers(images)
        self.log("val_loss", cross_entropy(logits, labels))
        self.log("val_acc", (logits.argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)


@cache
def digits() -> dict[str, TensorDataset]:
    """Returns images (1, 8, 8) in [0, 1] with labels by part; the parts are always the same."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    whole = TensorDataset(images, torch.tensor(labels))
    sizes = [len(whole) - 600, 300, 300]
    parts = random_split(whole, sizes, generator=torch.Generator().manual_seed(0))
    return dict(zip(("train", "validation", "test"), parts, strict=True))


def my_train(params: dict[str, Any], run: OwnRun) -> None:
    """Fits the network; `SpeedCallback` keeps the clock, reports, and ends the fit."""
    parts = digits()
    trainer = Trainer(
        accelerator="gpu" if run.device == "cuda" else "cpu",
        devices=1,
        max_epochs=1000,  # the run ends it before
        callbacks=[SpeedCallback(run, metric="val_acc")],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        SmallNet(width=params["width"], lr=params["lr"]),
        DataLoader(parts["train"], batch_size=params["batch_size"], shuffle=True),
        DataLoader(parts[run.part], batch_size=300),
    )


def main(trials: int = 10) -> None:
    """Searches and prints what was found."""
    study = tune_speed.search(
        train=my_train,
        space=SPACE,
        target={"metric": "accuracy", "value": 0.9},
        workload={"max_train_s": 30, "mode": "anytime"},
        trials=trials,
        study="lightning_digits",
    )
    print(study)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
