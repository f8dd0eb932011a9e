"""Experiments of the source documents, run again: the paper's figures next to ours.

An experiment is a study file in `search_spaces/replications/`: a recipe, an ablation of it, and
claims, each of which compares a published figure with one of ours. `plan_replication` and
`run_replication` are what `tune-speed replicate` runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.experiments.replication.outcome import Outcome
    from tune_speed.experiments.replication.replicate import plan_replication, run_replication
    from tune_speed.experiments.replication.shipped import replication_listing

__all__ = ["Outcome", "plan_replication", "replication_listing", "run_replication"]

_MODULES = {
    "Outcome": "outcome",
    "plan_replication": "replicate",
    "replication_listing": "shipped",
    "run_replication": "replicate",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: `replicate` needs torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
