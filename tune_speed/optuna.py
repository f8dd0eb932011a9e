"""An Optuna sampler and pruner that search for the shortest time to a target.

```python
import optuna
from tune_speed.optuna import TimeToTargetPruner, TimeToTargetSampler, timed

sampler = TimeToTargetSampler(target=0.97, num_trials=60, seed=0)
study = optuna.create_study(sampler=sampler, pruner=TimeToTargetPruner())
study.optimize(objective, n_trials=60)
print(sampler.recommended(study))
```

where `objective(trial)` trains within `with timed(trial):` and says `trial.report(accuracy, epoch)`
after each epoch. See the classes for what is read of a trial.
"""

from tune_speed.tuning.optuna.observed_study import Options
from tune_speed.tuning.optuna.sampler import (
    Recommendation,
    TimeToTargetPruner,
    TimeToTargetSampler,
    timed,
)

__all__ = ["Options", "Recommendation", "TimeToTargetPruner", "TimeToTargetSampler", "timed"]
