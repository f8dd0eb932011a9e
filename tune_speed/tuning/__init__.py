"""One search, from its checks to its results: policy, driver, Ray, and a simulation of them.

`search` runs a study with Ray Tune and MLflow. The policy (`policy/`) decides what to try and what
to stop, without Ray or a clock; `driver/` has its ledger and controller, `ray/` runs the trials,
`baselines/` are policies to compare with, and `simulation/` replays searches in virtual time. Ray
and Optuna are imported in this package alone, and only by the modules that need them.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "ray.concurrency": ("Packing",),
    "search": ("SearchResult", "View"),
    "provenance": ("Surroundings",),
    "policies": ("make_policy",),
    "admission": ("prepare_workload",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
