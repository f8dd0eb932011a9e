"""A table instead of images, a metric of which less is better, and a model of scikit-learn's:
`python tabular.py`, or for two trials `python tabular.py 2`.

The number of passes is the search's choice, and the target must hold at their end
(`mode: fixed_length`).
"""

import sys
from functools import cache
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

import tune_speed
from tune_speed.custom import OwnRun

SPACE = {
    "eta0": {"low": 0.001, "high": 0.3, "log": True},
    "alpha": {"low": 1e-6, "high": 1e-2, "log": True},
    "epochs": {"low": 2, "high": 20},
    "average": {"choices": [False, True]},
}
ROWS = 32
"""Rows of one call of `partial_fit`."""

Part = tuple[np.ndarray, np.ndarray]


@cache
def tumours() -> dict[str, Part]:
    """Returns standardised features (N, 30) and labels (N,) by part, always the same."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    train, validation, test = np.split(order, [len(x) - 200, len(x) - 100])
    x = StandardScaler().fit(x[train]).transform(x)
    rows = {"train": train, "validation": validation, "test": test}
    return {name: (x[part], y[part]) for name, part in rows.items()}


def my_train(params: dict[str, Any], run: OwnRun) -> None:
    """Fits a logistic regression by `epochs` passes of stochastic gradient descent."""
    parts = tumours()
    x, y = parts["train"]
    held_out_x, held_out_y = parts[run.part]
    order = np.random.default_rng(run.seed)
    model = SGDClassifier(
        loss="log_loss",
        learning_rate="constant",
        eta0=params["eta0"],
        alpha=params["alpha"],
        average=params["average"],
        random_state=run.seed,
    )
    step = 0
    with run.timed():
        for epoch in range(1, params["epochs"] + 1):
            for rows in np.array_split(order.permutation(len(x)), len(x) // ROWS):
                model.partial_fit(x[rows], y[rows], classes=(0, 1))
                step += 1
                run.step()
            with run.untimed():
                loss = log_loss(held_out_y, model.predict_proba(held_out_x))
            run.evaluated(step=step, metric=loss, epoch=epoch, samples=epoch * len(x))


def main(trials: int = 10) -> None:
    """Searches and prints what was found."""
    study = tune_speed.search(
        train=my_train,
        space=SPACE,
        target={"metric": "log_loss", "value": 0.1, "mode": "min"},
        workload={"max_train_s": 30, "mode": "fixed_length"},
        trials=trials,
        study="tabular",
    )
    print(study)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
