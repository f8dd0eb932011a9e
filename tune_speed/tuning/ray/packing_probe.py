"""Measures, before a search's first trial, how many trials at a time finish most an hour.

On one node that is to run trials, processes like those of trials take real steps of one
configuration, one process alone and several at once in turns (see `tune_speed.packing`). What is
best there holds for every GPU, and for all nodes by their cores.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_speed.components.plugins.shipping import receive, shipped
from tune_speed.core.error_text import one_line
from tune_speed.runtime.fate import end_with_parent
from tune_speed.runtime.mps import find_mps
from tune_speed.study.file import StudyFile
from tune_speed.study.typical import typical
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment
from tune_speed.training.workload import Workload
from tune_speed.tuning import concurrency
from tune_speed.tuning.concurrency import Packing
from tune_speed.tuning.ray.node_query import Node
from tune_speed.tuning.ray.room import Room, room_for

START_S = 120.0
"""Longest wait for a process: on a busy node it imports torch."""
MOST_WAIT = 0.1
"""A process alone that waits for a core for a larger share of its time is not alone."""
FALLBACK = 2
"""Trials at a time where nothing could be measured, if so many have room."""


class Place(NamedTuple):
    """Where a process finds itself."""

    device_key: str
    step_s: float
    wait_frac: float
    """Share of the time that it waited for a core."""
    sharing: str
    """How a GPU is shared."""


class Prober:
    """What runs in a process of its own, as a trial would."""

    def __init__(
        self, recipe: str, workload: str, allotment: str, label: str, plugins: str
    ) -> None:
        """Takes the configurations and plugins as JSON, and the first steps."""
        end_with_parent()
        receive(plugins)
        from tune_speed.tuning.ray.step_rate import PackedSteps

        self._steps = PackedSteps(
            Recipe.model_validate_json(recipe),
            Workload.model_validate_json(workload),
            Allotment.model_validate_json(allotment),
            label,
        )

    def place(self) -> Place:
        """Returns what it finds."""
        mps, steps = find_mps(), self._steps
        sharing = "; ".join(filter(None, [mps.sharing, mps.advice]))
        return Place(steps.device_key, steps.step_s, steps.wait_frac, sharing)

    def rate(self, window_s: float) -> float:
        """Returns steps a second."""
        return self._steps.rate(window_s=window_s)

    def memory_frac(self) -> float:
        """Returns the share of the device's memory that was needed."""
        return self._steps.memory_frac()


class Probers:
    """Processes on one node, as `packing.Company`."""

    def __init__(self, study: StudyFile, room: Room) -> None:
        """Starts none yet."""
        self._room, resources = room, study.search.resources
        params = typical(study.space, study.search.points_to_evaluate)
        recipe = Recipe.model_validate(study.space.build(params)).located()
        allotment = Allotment(
            device="cuda" if resources.gpu else "cpu",
            cpu_threads=max(1, int(resources.cpu)),
            max_cotenants=room.here - 1,
        )
        configs = (recipe, study.workload, allotment)
        texts = (config.model_dump_json() for config in configs)
        self._arguments = (*texts, study.name, shipped())
        self._threads = allotment.cpu_threads
        self._there: list[Any] = []
        self._places: list[Place] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for prober in self._there:
            ray.kill(prober)

    @property
    def sharing(self) -> str:
        """How the GPU is shared; empty for CPUs."""
        return self._places[0].sharing if self._room.resources.gpu else ""

    @property
    def company(self) -> str:
        """Returns who else wants the cores, in words; empty where nobody is noticed."""
        wait_frac = self._places[0].wait_frac / self._threads
        if wait_frac < MOST_WAIT:
            return ""
        return f"the node was busy: one alone waited for a core {wait_frac:.0%} of its time"

    def grow(self, count: int) -> bool:
        """Starts what is missing; returns whether all are there, on the same device.

        Raises: RayError if not even the first works.
        """
        new = [self._start() for _ in range(count - len(self._there))]
        self._there += new
        asked = [prober.place.remote() for prober in new]
        try:
            self._places += ray.get(asked, timeout=START_S)
        except RayError:
            if count == 1:
                raise
            return False
        return len({place.device_key for place in self._places}) == 1

    def step_s(self) -> float:
        """Returns about how long a step takes the first of them, alone [s]."""
        return self._places[0].step_s

    def rates(self, count: int, *, window_s: float) -> Sequence[float]:
        """Returns steps a second of each of the first `count`."""
        asked = [prober.rate.remote(window_s) for prober in self._there[:count]]
        rates: list[float] = ray.get(asked, timeout=START_S)
        return rates

    def memory_frac(self) -> float:
        """Returns the share of the device's memory that the greediest has needed."""
        fracs: list[float] = ray.get([p.memory_frac.remote() for p in self._there])
        return max(fracs)

    def _start(self) -> Any:
        resources = self._room.resources
        there = NodeAffinitySchedulingStrategy(self._room.nodes[0].node_id, soft=False)
        actor = ray.remote(Prober).options(
            num_cpus=resources.cpu,
            num_gpus=1 / self._room.here if resources.gpu else 0,
            scheduling_strategy=there,
        )
        return actor.remote(*self._arguments)


def choose(study: StudyFile, nodes: Sequence[Node]) -> Packing:
    """Returns how many trials of a study are to run at a time on these nodes, by measurement.

    Where nothing can be measured, two at a time, and the packing says why.
    """
    room = room_for(study.search.resources, nodes)
    if room.here <= 1 or study.search.resources.gpu > 1:
        return _packed(room, at_once=1, gains={}, note="no room for more on a device")
    most = min(room.here, study.search.trials)
    try:
        with Probers(study, room) as probers:
            gains, why_no_more = concurrency.measure(probers, most=most)
            note = "; ".join(filter(None, [why_no_more, probers.company]))
            at_once, sharing = concurrency.best(gains), probers.sharing
            return _packed(room, at_once=at_once, gains=gains, note=note, sharing=sharing)
    except RayError as error:
        reason = one_line(str(error).strip().splitlines()[-1])
        note = f"not measured: {reason}"
        at_once = 1 if study.search.resources.gpu == 1 else min(FALLBACK, most)
        return _packed(room, at_once=at_once, gains={}, note=note)


def _packed(
    room: Room, *, at_once: int, gains: dict[int, float], note: str, sharing: str = ""
) -> Packing:
    gpu = room.resources.gpu
    return Packing(
        concurrent=room.everywhere(at_once),
        at_once=at_once,
        gains=gains,
        sharing=sharing,
        note=note,
        gpu=1 / at_once if gpu == 1 else gpu,
    )
