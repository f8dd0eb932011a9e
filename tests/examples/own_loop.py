"""A training loop of one's own in PyTorch, searched: `python own_loop.py`, or for two trials
`python own_loop.py 2`.

The target is met at the first of two evaluations in a row that hold it (`mode: anytime`), so the
loop has no end of its own: the run ends it.
"""

import sys
from functools import cache
from itertools import count
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tune_speed
from tune_speed.custom import OwnRun

SPACE = {
    "lr": {"low": 0.01, "high": 0.3, "log": True},
    "batch_size": {"choices": [16, 32, 64]},
    "width": {"choices": [64, 128]},
    "momentum": 0.9,
}


@cache
def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Returns images (N, 64) in [0, 1] and labels (N,) by part; the parts are always the same."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    sizes = [len(x) - 600, 300, 300]
    names = ("train", "validation", "test")
    return dict(zip(names, zip(x.split(sizes), y.split(sizes), strict=True), strict=True))


def my_train(params: dict[str, Any], run: OwnRun) -> None:
    """Trains a network of two layers until the run ends it."""
    parts = {name: (x.to(run.device), y.to(run.device)) for name, (x, y) in digits().items()}
    x, y = parts["train"]
    held_out_x, held_out_y = parts[run.part]
    layers = (nn.Linear(64, params["width"]), nn.ReLU(), nn.Linear(params["width"], 10))
    model = nn.Sequential(*layers).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=params["momentum"])

    done = 0  # epochs
    state = run.restored()  # of an attempt at this trial that was interrupted
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epochs"]

    batches = -(-len(x) // params["batch_size"])
    with run.timed():
        for epoch in count(done + 1):
            for rows in torch.randperm(len(x), device=run.device).split(params["batch_size"]):
                optimizer.zero_grad()
                cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
                run.step()
            with run.untimed(), torch.no_grad():
                accuracy = (model(held_out_x).argmax(1) == held_out_y).float().mean().item()
            run.evaluated(
                step=epoch * batches, metric=accuracy, epoch=epoch, samples=epoch * len(x)
            )
            run.save(
                lambda epoch=epoch: {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epochs": epoch,
                }
            )


def main(trials: int = 10) -> None:
    """Searches and prints what was found."""
    study = tune_speed.search(
        train=my_train,
        space=SPACE,
        target={"metric": "accuracy", "value": 0.93},
        workload={"max_train_s": 30, "mode": "anytime"},
        trials=trials,
        study="own_loop",
    )
    print(study)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
