"""Queries nodes of a Ray cluster for their devices: the driver may be on another machine.

A small task on each node, all at the same time, reserves nothing, so that it runs on a node whose
cores and GPUs are all taken, and sees all GPUs there.
"""

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_speed.components.plugins.registry import receive
from tune_speed.core.errors import SetUpFailed, first_line
from tune_speed.runtime import process
from tune_speed.runtime.cpu_name import cpu_device_name
from tune_speed.training.trial import Allotment

NODE_LABEL = "ray.io/node-id"


class Node(NamedTuple):
    """A node that is alive."""

    node_id: str
    address: str
    resources: Mapping[str, float]


class Answer(NamedTuple):
    """Device and software of a node."""

    device: str
    torch: str
    sees_study: bool = True
    """Whether the study's folder is there: on shared storage, or on the driver's own machine."""


def alive_nodes() -> list[Node]:
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def here(*, cpu_threads: int) -> Answer:
    return Answer(cpu_device_name(threads=cpu_threads), metadata.version("torch"))


class RayQueries:
    """Queries to nodes that are under way; each node is queried once."""

    def __init__(self, *, device: str, cpu_threads: int, study: Path | None = None) -> None:
        self._arguments = device, cpu_threads, study
        self._pending: dict[Any, str] = {}
        self._task = ray.remote(num_cpus=0, max_retries=2)(_describe_node)

    def submit(self, node_id: str) -> None:
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        reference = self._task.options(scheduling_strategy=there).remote(*self._arguments)
        self._pending[reference] = node_id

    def results(self, *, timeout_s: float) -> dict[str, Answer | str]:
        """Returns what came from which node within `timeout_s`; at once when all have answered."""
        if not self._pending:
            return {}
        waiting = list(self._pending)
        done, _ = ray.wait(waiting, num_returns=len(waiting), timeout=timeout_s)
        return {self._pending.pop(each): _answer(each) for each in done}


def _answer(reference: Any) -> Answer | str:
    try:
        names, torch, sees_study = ray.get(reference)
    except RayError as error:
        is_ours = isinstance(error, RayTaskError)
        cause = (error.cause or error) if is_ours else error
        line = str(cause).strip().splitlines()[-1]
        return f"{'it has no such device' if is_ours else 'it gave no answer'}: {line}"
    if len(names) > 1:
        return f"it has several kinds of device, {' and '.join(names)}"
    return Answer(names[0], torch, sees_study)


def _describe_node(
    device: str, cpu_threads: int, study: Path | None
) -> tuple[Sequence[str], str, bool]:
    version, sees_study = metadata.version("torch"), study is None or study.exists()
    if device == "cpu":
        return [here(cpu_threads=cpu_threads).device], version, sees_study
    import torch

    from tune_speed.runtime.device import describe_device, resolve_device

    resolve_device("cuda")
    devices = (torch.device("cuda", i) for i in range(torch.cuda.device_count()))
    return sorted({describe_device(each) for each in devices}), version, sees_study


def set_up_worker(plugins: str = "") -> None:
    """Sets up a process of trials, without torch: a patient collector, an end with its parent."""
    process.make_patient()
    # Ray ends its workers when the raylet is gone, but a frozen one would not notice.
    process.end_with_parent()
    receive(plugins)


def set_up_device(allotment: Allotment, device_type: str | None) -> None:
    """Gives this process a device of that type. Raises: RuntimeError, no outcome; SetUpFailed."""
    from tune_speed.runtime.device import describe_device
    from tune_speed.training.worker import open_device

    try:
        found = describe_device(open_device(allotment))
    except Exception as error:
        raise SetUpFailed(
            f"a trial's process must be set up for `{allotment.device}` with"
            f" {allotment.gpu_fraction:g} of a GPU on {platform.node()}, but got"
            f" {first_line(error)}. See what `tune-speed doctor` says there."
        ) from error
    if device_type is not None and found != device_type:
        raise RuntimeError(
            f"trials of this study must run on {device_type}, but this node,"
            f" {platform.node()}, has {found}"
        )


def on_nodes(node_ids: Sequence[str]) -> dict[str, str]:
    """Returns Ray's label selector for these nodes; empty for any."""
    return {NODE_LABEL: f"in({','.join(node_ids)})"} if node_ids else {}
