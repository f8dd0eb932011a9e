"""Ray runs the trials: clusters, nodes, Ray Tune and Ray Train, processes and their liveness.

`connect` joins or starts a cluster, `Nodes` chooses the nodes with the study's device, `run_search`
has Ray Tune run the controller's proposals in processes (`TrialProcess`), and `ExclusiveDevice`
runs certified trials alone on a device. Private names of Ray are in `compat` alone.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "exclusive": ("ExclusiveDevice",),
    "nodes": ("Nodes",),
    "trial_process": ("TrialProcess",),
    "cluster": ("connect", "disconnect"),
    "tuner": ("run_search",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
