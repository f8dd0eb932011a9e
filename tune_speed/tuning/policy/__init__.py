"""The search policy: which configuration to try next, and when to stop a trial.

Pure: no Ray, no clock, no randomness but a seed, so a search and a simulation run the same object
and a ledger restores it. `base` is the interface of every policy. `TimeToTarget` is ours: a
Gaussian process over censored learning curves, an acquisition function with costs, and a pruner.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "acquisition": ("AcquisitionSettings",),
    "base": ("Cost", "Leader", "Outcome", "Policy", "PriorTrial", "Proposal", "SearchTarget"),
    "curve": ("Curve",),
    "settings": ("Parts",),
    "time_to_target": ("TimeToTarget",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
