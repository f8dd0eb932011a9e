"""Names of earlier versions: what has another name now, and what has left the package."""

from collections.abc import Mapping
from typing import Any, NamedTuple

# Present name by the former one, by the field of a recipe that holds the entry. None is ever
# removed: ledgers and stores are not rewritten.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "lr_schedule": {"drop_on_stall": "reduce_on_plateau", "step_drops": "multi_step"},
}


class Left(NamedTuple):
    """A setting of a study file that has left the package."""

    path: str
    instead: str
    value: Any = None
    """Its value that has left; None: any."""


LEFT_MUST = "must be left out, as this version no longer has it"
ONE_TARGET = (
    "Give `value`, and search for each target in a study of its own, whose `search.warm_start`"
    " names the others."
)
LEFT = (
    Left(
        "goal",
        "Search for the least time, and order what was found with `leaderboard --sort cost`.",
        {"minimise": "cost"},
    ),
    Left(
        "search.resources.device_types",
        "Search once for each `device_type`, and order the results with `leaderboard --sort cost`.",
    ),
    Left("workload.target.values", ONE_TARGET),
    Left("workload.target.weights", ONE_TARGET),
    Left("search.policy", "Compare with `vanilla` or `random`.", "tpe_penalty"),
    Left("search.policy", "Compare with `vanilla` or `random`.", "random_cap"),
)
LEFT_TARGET = (
    "Search for another target in a study of its own, whose `search.warm_start` names this one."
)
"""What to do in place of another target while a search runs."""
LEFT_OPTIONS = {("certify", "--front"): "Search for each target in a study of its own."}
"""What to do in place of an option of a command that has left."""

PRESENT = {old: new for names in RENAMED.values() for old, new in names.items()}
"""Present name of each entry by its former one."""


def with_present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's tree, or parameters by dotted names, with entries' present names."""
    return {_path(path): _entry(path, value) for path, value in settings.items()}


def _path(path: str) -> str:
    field, dot, below = path.partition(".")
    entry, *rest = below.split(".")
    return f"{field}{dot}{'.'.join([RENAMED.get(field, {}).get(entry, entry), *rest])}"


def _entry(path: str, value: Any) -> Any:
    names = RENAMED.get(path, {})
    if isinstance(value, str):
        return names.get(value, value)
    if names and isinstance(value, Mapping):
        return {names.get(name, name): fields for name, fields in value.items()}
    return value


def with_one_target(workload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a workload's tree; of several targets, with the hardest, to which its run trained."""
    target = workload.get("target")
    if not isinstance(target, Mapping):
        return dict(workload)
    kept = {name: value for name, value in target.items() if name not in ("values", "weights")}
    return {**workload, "target": kept}
