"""One training: from a recipe, a workload and a seed to a record of how it went.

A `Recipe` is how to train, a `Workload` what must be reached; `train` runs one on the other, and
`run_trial` wraps that in the record of a trial, whatever goes wrong. What is measured before a run
lies in `autotune`, an optimizer step in `step`, saving and resuming in `checkpoint`, and the
processes of several devices in `distributed`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.training.loop import Interrupted, train
    from tune_speed.training.objective import finish, run_trial
    from tune_speed.training.recipe import Recipe
    from tune_speed.training.trial import TrialSpec
    from tune_speed.training.workload import Workload

__all__ = ["Interrupted", "Recipe", "TrialSpec", "Workload", "finish", "run_trial", "train"]

_MODULES = {
    "Interrupted": "loop",
    "Recipe": "recipe",
    "TrialSpec": "trial",
    "Workload": "workload",
    "finish": "objective",
    "run_trial": "objective",
    "train": "loop",
}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used, as torch takes seconds."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
