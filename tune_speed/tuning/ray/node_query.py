"""Asks nodes of a Ray cluster what their device is: the driver may sit elsewhere.

Each node is asked by a small task on the node itself, all of them at once. The task reserves
nothing, so that it runs on a node whose cores and GPUs are all taken, and sees all GPUs there.
"""

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_speed.runtime.cpu_name import cpu_device_name
from tune_speed.training.trial import Allotment

NODE_LABEL = "ray.io/node-id"


class Node(NamedTuple):
    """A node that is alive."""

    node_id: str
    address: str
    resources: Mapping[str, float]
    """As Ray names them."""


class Answer(NamedTuple):
    """What a node says of itself."""

    device: str
    """As records name it."""
    torch: str
    sees_study: bool = True
    """Whether the study's folder is there: on shared storage, or on the driver's own machine."""


class Unfit(NamedTuple):
    """Why no trial can run on a node."""

    reason: str


class OtherDevice(RuntimeError):
    """A trial was placed on a device that is not its study's."""


def alive_nodes() -> list[Node]:
    """Returns the nodes of the cluster; Ray must be connected."""
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def here(*, cpu_threads: int) -> Answer:
    """Returns CPU and torch of this machine."""
    return Answer(cpu_device_name(threads=cpu_threads), metadata.version("torch"))


class Questions:
    """Questions to nodes that are under way; each node is asked once."""

    def __init__(self, *, device: str, cpu_threads: int, study: Path | None = None) -> None:
        """Asks for nothing yet; `device` is `cpu` or `cuda`, `study` a file of the study's."""
        self._arguments = device, cpu_threads, study
        self._asked: dict[Any, str] = {}
        self._task = ray.remote(num_cpus=0, max_retries=2)(_look)

    def ask(self, node_id: str) -> None:
        """Sends the question and returns."""
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        reference = self._task.options(scheduling_strategy=there).remote(*self._arguments)
        self._asked[reference] = node_id

    def answers(self, *, timeout_s: float) -> dict[str, Answer | Unfit]:
        """Returns what came from which node within `timeout_s`; at once when all have answered."""
        if not self._asked:
            return {}
        waiting = list(self._asked)
        done, _ = ray.wait(waiting, num_returns=len(waiting), timeout=timeout_s)
        return {self._asked.pop(each): _answer(each) for each in done}


def _answer(reference: Any) -> Answer | Unfit:
    try:
        names, torch, sees_study = ray.get(reference)
    except RayTaskError as error:
        return Unfit(f"it has no such device: {_last_line(error.cause or error)}")
    except RayError as error:
        return Unfit(f"it gave no answer: {_last_line(error)}")
    if len(names) > 1:
        return Unfit(f"it has several kinds of device, {' and '.join(names)}")
    return Answer(names[0], torch, sees_study)


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]


def _look(device: str, cpu_threads: int, study: Path | None) -> tuple[Sequence[str], str, bool]:
    """Returns what `Answer` has, but for all devices of this node; runs on the node."""
    version, sees_study = metadata.version("torch"), study is None or study.exists()
    if device == "cpu":
        return [here(cpu_threads=cpu_threads).device], version, sees_study
    import torch

    from tune_speed.runtime.device import describe_device, resolve_device

    resolve_device("cuda")
    devices = (torch.device("cuda", i) for i in range(torch.cuda.device_count()))
    return sorted({describe_device(each) for each in devices}), version, sees_study


def refuse_other_device(allotment: Allotment, device_type: str | None) -> None:
    """Sets this process up for the device of `allotment`, which must be of that type.

    Raises: OtherDevice. It is no outcome of the trial, which may run again elsewhere.
    """
    if device_type is None:
        return
    from tune_speed.runtime.device import describe_device, resolve_device, set_up_process

    device = resolve_device(allotment.device)
    set_up_process(device, cpu_threads=allotment.cpu_threads)
    if (found := describe_device(device)) != device_type:
        raise OtherDevice(
            f"trials of this study must run on {device_type}, but this node,"
            f" {platform.node()}, has {found}"
        )


def on_nodes(node_ids: Sequence[str]) -> dict[str, str]:
    """Returns the label selector, as Ray takes it, that names these nodes; empty for any."""
    return {NODE_LABEL: f"in({','.join(node_ids)})"} if node_ids else {}
