"""Ray runs the trials: clusters, nodes, Ray Tune and Ray Train, processes and their liveness.

`connect` joins or starts a cluster, `Nodes` chooses the nodes with the study's device, `run_search`
has Ray Tune run the controller's proposals in processes (`TrialProcess`), and `ExclusiveDevice`
runs certified trials alone on a device. Private names of Ray are in `compat` alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.tuning.ray.cluster import connect, disconnect
    from tune_speed.tuning.ray.exclusive import ExclusiveDevice
    from tune_speed.tuning.ray.nodes import Nodes
    from tune_speed.tuning.ray.trial_process import TrialProcess
    from tune_speed.tuning.ray.tuner import run_search

__all__ = ["ExclusiveDevice", "Nodes", "TrialProcess", "connect", "disconnect", "run_search"]

_MODULES = {
    "ExclusiveDevice": "exclusive",
    "Nodes": "nodes",
    "TrialProcess": "trial_process",
    "connect": "cluster",
    "disconnect": "cluster",
    "run_search": "tuner",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: Ray takes a second."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
