"""`python example.py`: an objective that takes no time, with a clock of its own."""

import math
import random

import optuna

try:
    from optunahub import load_local_module

    package = load_local_module("samplers/time_to_target", registry_root="../..")
except ImportError:  # Without OptunaHub, from the package that it wraps.
    import tune_speed.optuna as package


def objective(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("lr", 1e-4, 10.0, log=True)
    epochs = trial.suggest_int("epochs", 1, 64, log=True)
    trial.set_user_attr("train_s", float(epochs))
    luck = random.Random(trial.number).gauss(0.0, 0.01)
    return 0.94 * (1 - math.exp(-epochs / 2)) - 0.05 * math.log10(lr / 0.1) ** 2 + luck


sampler = package.TimeToTargetSampler(target=0.9, num_trials=40, seed=0)
study = optuna.create_study(direction="maximize", sampler=sampler)
study.optimize(objective, n_trials=40)
print(sampler.recommended(study))
