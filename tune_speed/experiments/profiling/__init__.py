"""Where the time of an optimizer step goes, against what the device could do; and what to change.

A recipe's own pipeline runs with borders between the phases of a step (`phases`, `blocks`), the
device's rates are measured (`rates`), what a step computes and moves is counted (`work`), and the
roofline model compares them (`roofline`). `advice` says what to try; `rows` and `picture` show it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.experiments.profiling.picture import plot_profile
    from tune_speed.experiments.profiling.profile import profile_recipe
    from tune_speed.experiments.profiling.result import ProfileResult

__all__ = ["ProfileResult", "plot_profile", "profile_recipe"]

_MODULES = {"ProfileResult": "result", "plot_profile": "picture", "profile_recipe": "profile"}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used, as torch takes seconds."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
