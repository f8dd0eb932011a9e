"""One search, from its checks to its results: policy, driver, Ray, and a simulation of them.

`search` runs a study with Ray Tune and MLflow. The policy (`policy/`) decides what to try and what
to stop, without Ray or a clock; `driver/` has its ledger and controller, `ray/` runs the trials,
`baselines/` are policies to compare with, and `simulation/` replays searches in virtual time. Ray
and Optuna are imported in this package alone, and only by the modules that need them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.tuning.concurrency import Packing
    from tune_speed.tuning.policies import make_policy
    from tune_speed.tuning.prepare import prepare_workload
    from tune_speed.tuning.provenance import Surroundings
    from tune_speed.tuning.search import SearchResult, View

__all__ = ["Packing", "SearchResult", "Surroundings", "View", "make_policy", "prepare_workload"]

_MODULES = {
    "Packing": "concurrency",
    "SearchResult": "search",
    "Surroundings": "provenance",
    "View": "search",
    "make_policy": "policies",
    "prepare_workload": "prepare",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: Ray and torch take seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
