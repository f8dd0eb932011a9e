"""The search policy: which configuration to try next, and when to stop a trial.

Pure: no Ray, no clock, no randomness but a seed, so a search and a simulation run the same object
and a ledger restores it. `base` is the interface of every policy. `TimeToTarget` is ours: a
Gaussian process over censored learning curves, an acquisition function with costs, and a pruner.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "AcquisitionSettings": "acquisition",
    "Cost": "base",
    "Curve": "curve",
    "Leader": "base",
    "Outcome": "base",
    "Parts": "settings",
    "Policy": "base",
    "PriorTrial": "base",
    "Proposal": "base",
    "SearchTarget": "base",
    "TimeToTarget": "time_to_target",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Returns a public name of the room. Its module is imported only when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
