"""A Ray Tune searcher and scheduler that search for the shortest time to a target.

```python
from ray import tune
from tune_speed.ray import TimeToTargetScheduler, TimeToTargetSearch

search = TimeToTargetSearch(target=0.97, num_trials=60, seed=0)
tuner = tune.Tuner(
    trainable,  # Reports {"accuracy": …, "train_s": …} after each epoch.
    param_space={"lr": tune.loguniform(1e-3, 1.0), "epochs": tune.randint(2, 17)},
    tune_config=tune.TuneConfig(
        metric="accuracy",
        mode="max",
        search_alg=search,
        scheduler=TimeToTargetScheduler(search),
        num_samples=60,
    ),
)
tuner.fit()
print(search.recommended())
```
"""

from tune_speed.tuning.optuna.observed_study import Options
from tune_speed.tuning.optuna.ray_search import TimeToTargetScheduler, TimeToTargetSearch

__all__ = ["Options", "TimeToTargetScheduler", "TimeToTargetSearch"]
