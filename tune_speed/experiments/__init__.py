"""Experiments with recipes next to a search: certification, ablation, profiling, replication.

In this folder are trainings of one recipe (`train_seeds`), of two in turns (`train_both`, `judge`),
and the statistics of several runs (`describe_runs`); each larger experiment has a room of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.experiments.head_to_head import Duel, train_both
    from tune_speed.experiments.paired_test import Verdict, judge
    from tune_speed.experiments.rerun import train_seeds
    from tune_speed.experiments.run_summary import Statistics, describe_runs

__all__ = ["Duel", "Statistics", "Verdict", "describe_runs", "judge", "train_both", "train_seeds"]

_MODULES = {
    "Duel": "head_to_head",
    "Statistics": "run_summary",
    "Verdict": "paired_test",
    "describe_runs": "run_summary",
    "judge": "paired_test",
    "train_both": "head_to_head",
    "train_seeds": "rerun",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: trainings need torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
