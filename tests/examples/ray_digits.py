"""A Ray Tune script of one's own, looking for the shortest time to a target: digits.

`python ray_digits.py [TRIALS]`
"""

import sys
import time

import numpy as np
from ray import tune
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from tune_speed.ray import TimeToTargetScheduler, TimeToTargetSearch


def trainable(config: dict) -> None:
    x, y = load_digits(return_X_y=True)
    model = SGDClassifier("log_loss", alpha=config["alpha"], random_state=config["seed"])
    train_s = 0.0
    for _ in range(config["epochs"]):
        started_s = time.perf_counter()
        model.partial_fit(x[:1300] / 16, y[:1300], classes=np.arange(10))
        train_s += time.perf_counter() - started_s
        tune.report({"accuracy": model.score(x[1300:] / 16, y[1300:]), "train_s": train_s})


trials = int(sys.argv[1]) if len(sys.argv) > 1 else 30
search = TimeToTargetSearch(target=0.9, num_trials=trials, seed_as="seed", seed=0)
tuner = tune.Tuner(
    tune.with_resources(trainable, {"cpu": 1}),
    param_space={"alpha": tune.loguniform(1e-6, 1e-1), "epochs": tune.randint(1, 20)},
    tune_config=tune.TuneConfig(
        metric="accuracy", mode="max", search_alg=search, num_samples=trials,
        scheduler=TimeToTargetScheduler(search), max_concurrent_trials=2,
    ),
)  # fmt: skip
tuner.fit()
best = search.recommended()
print(best and (search.config_of(best.trial_id), best))
