"""Experiments with recipes next to a search: certification, ablation, profiling, replication.

In this folder are trainings of one recipe (`train_seeds`), of two in turns (`train_both`, `judge`),
and the statistics of several runs (`describe_runs`); each larger experiment has a room of its own.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "head_to_head": ("Duel", "train_both"),
    "run_summary": ("Statistics", "describe_runs"),
    "paired_test": ("Verdict", "judge"),
    "rerun": ("train_seeds",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
