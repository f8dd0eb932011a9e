"""Turns `concurrent: auto` of a study into the number that finishes most trials an hour.

While k trials run at once, each takes T(k), and all together take r(k) optimizer steps a second.
The gain of k, its trials an hour over those with one, is measured, now or before:

    g(k) = (k / T(k)) / (1 / T(1)) = r(k) / r(1)

Neither whether a trial reaches the target nor its time to target (steps times isolated step time)
changes with its neighbours. More at once cost knowledge: each is proposed before the others'
outcomes are known. So of the k within `LEAST_GAIN` of the best, the smallest is taken.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import ray
from pydantic import Field
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_speed.components.plugins.registry import shipped
from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, StorageError, one_line
from tune_speed.core.text import counted
from tune_speed.runtime.atomic_file import replace_text
from tune_speed.runtime.mps import find_mps
from tune_speed.study.file import StudyFile
from tune_speed.study.settings import ResourceConfig
from tune_speed.study.space import typical
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment
from tune_speed.training.workload import Workload
from tune_speed.tuning.ray.node_query import Node, alive_nodes, set_up_worker
from tune_speed.tuning.ray.nodes import Nodes

LEAST_GAIN = 0.03
"""More trials at a time must finish so many more an hour to be worth it."""
# How often k at once and one alone are measured, in turns.
PAIRS = 3
# Steps are counted for so long [s], or longer where a step is long.
WINDOW_S = 0.4
STEPS_PER_WINDOW = 3
LONGEST_WINDOW_S = 10.0
MEMORY_FRAC = 0.9
"""Share of a device's memory that trials may fill together."""
# More processes than that are not tried on one GPU.
MOST_ON_A_GPU = 16
START_S = 120.0
"""Longest wait for a process [s]: it imports torch, on a busy node."""
# A process alone that waits for a core for a larger share of its time is not alone.
MOST_WAIT = 0.1
# Trials at a time where nothing could be measured, if so many have room.
FALLBACK = 2
FILE = "packing.json"


class Packing(Config):
    """How many trials run at a time, and the measurement behind it."""

    concurrent: Annotated[int, Field(gt=0)]
    """Trials at the same time, on all devices together."""
    at_once: Annotated[int, Field(gt=0)]
    """Of these on one GPU, or on one node of CPUs."""
    gains: dict[int, float] = Field(default={})
    """g(k) by k; empty where nothing was measured."""
    sharing: str = ""
    """How a GPU is shared, such as `time slicing`; empty for CPUs."""
    note: str = ""
    """Why no more were tried, or why nothing was measured; may be empty."""
    gpu: Annotated[float, Field(ge=0)] = 0.0
    """Share of a GPU that a trial gets."""
    asked: dict[str, str] = Field(default={})
    """Resources and nodes for which the choice holds."""

    def line(self) -> str:
        """Returns the choice for people: `2 at a time: 1.93 × the trials an hour of one; …`."""
        chosen = f"{self.concurrent} at a time"
        if self.concurrent != self.at_once:
            chosen += f", {self.at_once} on each {'GPU' if self.gpu else 'node'}"
        gain = self.gains.get(self.at_once)
        if gain is not None and self.at_once > 1:
            chosen += f": {gain:.2f} × the trials an hour of one"
        tried = {k: g for k, g in self.gains.items() if k not in (1, self.at_once)}
        others = [f"{k}: {gain:.2f} ×" for k, gain in tried.items()]
        return "; ".join(filter(None, [chosen, *others, self.sharing, self.note]))


class Room(NamedTuple):
    """How many trials fit."""

    here: int
    nodes: Sequence[Node]
    """Where trials may run; the first is measured."""
    resources: ResourceConfig

    def everywhere(self, at_once: int) -> int:

        def on(node: Node) -> int:
            fitting = _fitting(node, self.resources)
            if not self.resources.gpu:
                return min(fitting, max(1, round(fitting * at_once / self.here)))
            if self.resources.gpu > 1:
                return min(fitting, int(_gpus(node) / self.resources.gpu))
            return min(fitting, int(_gpus(node)) * at_once)

        return max(1, sum(map(on, self.nodes)))


def room_for(resources: ResourceConfig, nodes: Sequence[Node]) -> Room:
    least_gpus = max(1.0, resources.gpu) if resources.gpu else 0.0
    fits = [node for node in nodes if _fitting(node, resources) and _gpus(node) >= least_gpus]
    if not fits:
        return Room(0, (), resources)
    first = max(fits, key=lambda node: _fitting(node, resources))
    ordered = [first, *(node for node in fits if node is not first)]
    here = _fitting(first, resources)
    if resources.gpu:
        # Ray places whole GPUs per trial, or shares of one: 1e-9 for 1 / 3 three times.
        on_one = MOST_ON_A_GPU if resources.gpu == 1 else math.floor(1 / resources.gpu + 1e-9)
        here = min(max(1, here // int(_gpus(first))), MOST_ON_A_GPU, max(1, on_one))
    return Room(here, ordered, resources)


def _fitting(node: Node, resources: ResourceConfig) -> int:
    needs = {"CPU": resources.cpu, "memory": (resources.memory_gib or 0.0) * 2**30}
    shares = [node.resources.get(n, 0.0) / need for n, need in needs.items() if need]
    return math.floor(min(shares) + 1e-9)


def _gpus(node: Node) -> float:
    return node.resources.get("GPU", 0.0)


class Place(NamedTuple):
    """Device and conditions of a process."""

    device_key: str
    step_s: float
    wait_frac: float
    """Share of the time that it waited for a core."""
    sharing: str


class Prober:
    """An actor that takes steps of a recipe as a trial would."""

    def __init__(self, plugins: str, study: str, *configs: str) -> None:
        """Takes the first steps; `configs` are recipe, workload and allotment, as JSON."""
        set_up_worker(plugins)
        from tune_speed.tuning.ray.step_rate import PackedSteps

        recipe, workload, allotment = configs
        self._steps = PackedSteps(
            Recipe.model_validate_json(recipe),
            Workload.model_validate_json(workload),
            Allotment.model_validate_json(allotment),
            study,
        )

    def place(self) -> Place:
        mps, steps = find_mps(), self._steps
        sharing = "; ".join(filter(None, [mps.sharing, mps.advice]))
        return Place(steps.device_key, steps.step_s, steps.wait_frac, sharing)

    def rate(self, window_s: float) -> float:
        return self._steps.rate(window_s=window_s)

    def memory_frac(self) -> float:
        return self._steps.memory_frac()


class Probers(AbstractContextManager["Probers"]):
    """Processes on one node that take steps of a recipe."""

    def __init__(self, study: StudyFile, room: Room) -> None:
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
        self._arguments = (shipped(), study.name, *texts)
        self._threads = allotment.cpu_threads
        self._there: list[Any] = []
        self._places: list[Place] = []

    def __exit__(self, *_: object) -> None:
        for prober in self._there:
            ray.kill(prober)

    @property
    def sharing(self) -> str:
        return self._places[0].sharing if self._room.resources.gpu else ""

    @property
    def other_load(self) -> str:
        wait_frac = self._places[0].wait_frac / self._threads
        if wait_frac < MOST_WAIT:
            return ""
        return f"the node was busy: one alone waited for a core {wait_frac:.0%} of its time"

    def grow(self, count: int) -> bool:
        """Starts what lacks; returns whether all share a device. Raises: RayError without any."""
        resources = self._room.resources
        there = NodeAffinitySchedulingStrategy(self._room.nodes[0].node_id, soft=False)
        actor = ray.remote(Prober).options(
            num_cpus=resources.cpu,
            num_gpus=1 / self._room.here if resources.gpu else 0,
            scheduling_strategy=there,
        )
        new = [actor.remote(*self._arguments) for _ in range(count - len(self._there))]
        self._there += new
        try:
            self._places += ray.get([prober.place.remote() for prober in new], timeout=START_S)
        except RayError:
            if count == 1:
                raise
            return False
        return len({place.device_key for place in self._places}) == 1

    def step_s(self) -> float:
        return self._places[0].step_s

    def rates(self, count: int, *, window_s: float) -> Sequence[float]:
        calls = [prober.rate.remote(window_s) for prober in self._there[:count]]
        rates: list[float] = ray.get(calls, timeout=START_S)
        return rates

    def memory_frac(self) -> float:
        """Returns the share of the device's memory that the greediest has needed."""
        fracs: list[float] = ray.get([p.memory_frac.remote() for p in self._there])
        return max(fracs)


def sizes(most: int) -> list[int]:
    """Returns the k to try: 1, 2, 3, 4, 6, 8, 12, 16 … and `most`."""
    steps = {1 << power for power in range(most.bit_length())}
    steps |= {3 << power for power in range(most.bit_length())}
    return sorted({size for size in steps if size <= most} | {most})


def measure(pool: "Probers", *, most: int) -> tuple[dict[int, float], str]:
    """Returns the gain g(k) of each k that was tried, and why no larger one was; may be empty.

    Each k is measured in turns with one alone, as machines drift; the median of the ratios counts.
    """
    gains = {1: 1.0}
    pool.grow(1)
    window_s = min(max(WINDOW_S, STEPS_PER_WINDOW * pool.step_s()), LONGEST_WINDOW_S)
    for size in sizes(most)[1:]:
        if size * pool.memory_frac() > MEMORY_FRAC:
            return gains, f"{size} would fill the memory"
        if not pool.grow(size):
            return gains, f"{size} did not start"
        ratios = []
        for _ in range(PAIRS):
            alone = sum(pool.rates(1, window_s=window_s))
            ratios.append(sum(pool.rates(size, window_s=window_s)) / alone)
        gains[size] = statistics.median(ratios)
        # Two in a row: another process may have disturbed a single one.
        if max(list(gains.values())[-2:]) * (1 + LEAST_GAIN) < max(gains.values()):
            return gains, ""
    return gains, ""


def best(gains: Mapping[int, float]) -> int:
    """Returns the smallest k whose gain is within `LEAST_GAIN` of the largest."""
    enough = max(gains.values()) / (1 + LEAST_GAIN)
    return min(k for k, gain in gains.items() if gain >= enough)


def choose(study: StudyFile, nodes: Sequence[Node]) -> Packing:
    """Returns how many trials to run at a time, by measurement; two where that is impossible."""
    room, gpu = room_for(study.search.resources, nodes), study.search.resources.gpu
    most = min(room.here, study.search.trials)
    at_once, gains, sharing = 1, dict[int, float](), ""
    if room.here <= 1 or gpu > 1:
        note = "no room for more on a device"
    else:
        try:
            with Probers(study, room) as probers:
                gains, why_no_more = measure(probers, most=most)
                note = "; ".join(filter(None, [why_no_more, probers.other_load]))
                at_once, sharing = best(gains), probers.sharing
        except RayError as error:
            note = f"not measured: {one_line(str(error).strip().splitlines()[-1])}"
            at_once = 1 if gpu == 1 else min(FALLBACK, most)
    return Packing(
        concurrent=room.everywhere(at_once),
        at_once=at_once,
        gains=gains,
        sharing=sharing,
        note=note,
        gpu=1 / at_once if gpu == 1 else gpu,
    )


def packed(
    study: StudyFile, nodes: Nodes, *, folder: Path, on_line: Callable[[str], None]
) -> tuple[StudyFile, Packing | None]:
    """Returns the study with a number for `concurrent: auto`; another as has room, and None."""
    there = _usable(nodes)
    if study.search.concurrent != "auto":
        return _with_room(study, nodes, there, on_line), None
    cores, gpus = (sum(n.resources.get(name, 0.0) for n in there) for name in ("CPU", "GPU"))
    asked = {
        "resources": study.search.resources.model_dump_json(),
        "there": f"{len(there)} nodes, {cores:g} CPU, {gpus:g} GPU",
    }
    packing, source = read_packing(folder, asked), "as measured before: "
    if packing is None:
        on_line("measuring how many trials at a time finish most an hour …")
        packing, source = choose(study, there).model_copy(update={"asked": asked}), ""
        write_packing(packing, folder)
    on_line(source + packing.line())
    resources = study.search.resources.model_copy(update={"gpu": packing.gpu})
    update = {"concurrent": packing.concurrent, "resources": resources}
    return replace(study, search=study.search.model_copy(update=update)), packing


def _usable(nodes: Nodes) -> list[Node]:
    there = nodes.allowed
    return [node for node in alive_nodes() if not there or node.node_id in there]


def most_at_once(resources: ResourceConfig, nodes: Nodes) -> int:
    return _room_of_all(resources, _usable(nodes))


def _room_of_all(resources: ResourceConfig, nodes: Sequence[Node]) -> int:
    room = sum(_fitting(node, resources) for node in nodes)
    if not resources.gpu:
        return room
    a_gpu = math.floor(1 / resources.gpu + 1e-9) or 1 / resources.gpu
    return min(room, int(sum(map(_gpus, nodes)) * a_gpu))


def _with_room(
    study: StudyFile, nodes: Nodes, there: Sequence[Node], on_line: Callable[[str], None]
) -> StudyFile:
    search, resources = study.search, study.search.resources
    room = _room_of_all(resources, there)
    if not 0 < room < min(search.at_once, search.trials):
        return study
    on_line(
        f"warning: search.concurrent is {search.at_once}, but only {counted(room, 'trial')} at a"
        f" time {'has' if room == 1 else 'have'} room here, with {resources.words} each"
        " (search.resources)" + (f": {room} at a time" if nodes.is_local else "")
    )
    if not nodes.is_local:
        return study
    return replace(study, search=search.model_copy(update={"concurrent": room}))


def read_packing(folder: Path, asked: dict[str, str]) -> Packing | None:
    try:
        packing = Packing.model_validate_json((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
    return packing if packing.asked == asked else None


def write_packing(packing: Packing, folder: Path) -> None:
    if packing.gains:
        with suppress(StorageError, ConfigError):
            replace_text(folder / FILE, packing.model_dump_json(indent=2))
