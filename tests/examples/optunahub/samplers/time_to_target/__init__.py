"""The sampler and pruner of `tune_speed.optuna`, as a package of OptunaHub's layout."""

from tune_speed.optuna import Recommendation, TimeToTargetPruner, TimeToTargetSampler, timed

__all__ = ["Recommendation", "TimeToTargetPruner", "TimeToTargetSampler", "timed"]
