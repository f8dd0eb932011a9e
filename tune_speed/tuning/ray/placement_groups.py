"""Placement groups of Ray Train, by trial, to be removed when a trial's process dies."""

# Ray Train's placement group outlives the process for which it was made: Ray removes it when the
# whole job ends, and Ray Train's own cleaner needs the dashboard, which a local cluster does not
# run. Workers therefore register the group that they are in with an actor of the driver's.

import uuid
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_current_placement_group, remove_placement_group

ANSWER_S = 30.0
"""Time-out of a call to the actor that holds the list [s]."""


class PlacementGroups:
    """The driver's list of placement groups by trial, in an actor; Ray must be connected."""

    def __init__(self) -> None:
        self.name = f"tune_speed-holdings-{uuid.uuid4().hex}"
        self._list = ray.remote(_List).options(num_cpus=0, name=self.name).remote()

    def release(self, trial_id: str) -> None:
        """Removes the placement groups of a trial whose process is gone."""
        try:
            groups = ray.get(self._list.take.remote(trial_id), timeout=ANSWER_S)
        except (RayError, GetTimeoutError):
            return  # The list is lost; Ray frees the groups when the job ends.
        for group in groups:
            remove_placement_group(group)


def note_group(name: str, trial_id: str) -> None:
    """Registers the placement group that this worker is in with the list of that name."""
    ray.get(ray.get_actor(name).note.remote(trial_id, get_current_placement_group()))


class _List:
    def __init__(self) -> None:
        self._groups: dict[str, list[Any]] = {}

    def note(self, trial_id: str, group: Any) -> None:
        self._groups.setdefault(trial_id, []).append(group)

    def take(self, trial_id: str) -> list[Any]:
        """Returns each group once and removes it from the list."""
        groups = self._groups.pop(trial_id, [])
        return list({group.id: group for group in groups}.values())
