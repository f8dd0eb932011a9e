"""One training: from a recipe, a workload and a seed to a record of how it went.

A `Recipe` is how to train, a `Workload` what must be reached; `train` runs one on the other, and
`run_trial` wraps that in the record of a trial, whatever goes wrong. What is measured before a run
lies in `autotune`, an optimizer step in `step`, saving and resuming in `checkpoint`, and the
processes of several devices in `distributed`.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "loop": ("Interrupted", "train"),
    "recipe": ("Recipe",),
    "trial": ("TrialSpec",),
    "workload": ("Workload",),
    "objective": ("finish", "run_trial"),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
