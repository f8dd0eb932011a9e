"""Optuna's own `study.optimize`, looking for the shortest time to a target: digits."""

import optuna
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tune_speed.optuna import TimeToTargetPruner, TimeToTargetSampler, timed

torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
parts = train_test_split((images / 16).astype("float32"), labels, random_state=0)
x, held_x, y, held_y = map(torch.tensor, parts)


def objective(trial: optuna.Trial) -> float:
    torch.manual_seed(trial.number)  # A configuration may run again: with other luck.
    net = torch.nn.Sequential(torch.nn.LazyLinear(64), torch.nn.ReLU(), torch.nn.LazyLinear(10))
    lr = trial.suggest_float("lr", 1e-3, 1.0, log=True)
    batch_size = trial.suggest_categorical("batch_size", [16, 32, 64, 128])
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9)
    for epoch in range(trial.suggest_int("epochs", 1, 16, log=True)):
        with timed(trial):
            for rows in torch.randperm(len(x)).split(batch_size):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                optimizer.step()
        accuracy = (net(held_x).argmax(1) == held_y).float().mean().item()
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    return accuracy


sampler = TimeToTargetSampler(target=0.96, num_trials=60, seed=0)
study = optuna.create_study(direction="maximize", sampler=sampler, pruner=TimeToTargetPruner())
study.optimize(objective, n_trials=60)
print(sampler.recommended(study))
