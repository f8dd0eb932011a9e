"""Experiments with recipes next to a search: certification, ablation, profiling, replication.

In this folder are trainings of one recipe or of two in turns (`train_seeds`, `judge`), and the
statistics of several runs (`describe_runs`); each larger experiment has a room of its own.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "run_summary": ("Statistics", "describe_runs"),
    "paired_test": ("Verdict", "judge"),
    "rerun": ("Training", "train_seeds"),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
