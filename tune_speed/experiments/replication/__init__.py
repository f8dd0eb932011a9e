"""Experiments of the source documents, run again: the paper's figures next to ours.

An experiment is a study file in `search_spaces/replications/`: a recipe, an ablation of it, and
claims, each of which compares a published figure with one of ours. `plan_replication` and
`run_replication` are what `tune-speed replicate` runs.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "agreement": ("Outcome",),
    "replicate": ("plan_replication", "run_replication"),
    "shipped": ("replication_listing",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
