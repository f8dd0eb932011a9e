"""How many devices the trials of a study can take, and what that asks of a study file."""

from collections.abc import Iterator, Mapping
from typing import Any

from tune_speed.study.mistake import Mistake, shown
from tune_speed.study.space import SearchSpace


def most_devices(space: SearchSpace) -> int:
    """Returns the largest number of devices that a trial may train on."""
    searched = [parameter for parameter in space.parameters if parameter.name == "devices"]
    ends = searched[0].ends() if searched else (space.tree.get("devices", 1),)
    return max(int(end or 1) for end in ends)


def devices_mistakes(space: SearchSpace, search: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yields why several devices cannot be had: a GPU holds no more than one rank of a trial."""
    if most_devices(space) == 1:
        return
    if search.get("concurrent") == "auto":
        must = "must be a number where recipe.devices may exceed 1, as such trials share no device"
        yield Mistake(("search", "concurrent"), must, "auto", "Try 1.")
    gpu = (search.get("resources") or {}).get("gpu", 0)
    if gpu == int(gpu):
        return
    must = "must be a whole number where recipe.devices may exceed 1, as each has a GPU to itself"
    yield Mistake(("search", "resources", "gpu"), must, shown(gpu), "Try 1.")
