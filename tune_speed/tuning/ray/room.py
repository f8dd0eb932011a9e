"""How many trials have room, on a device and on all nodes.

`search.resources.gpu` decides who may share a GPU:

| `gpu` | trials on a GPU                                                      |
|-------|----------------------------------------------------------------------|
| 0     | they share the cores of a node, each with `cpu` of them              |
| < 1   | as many as fit, at most; each keeps that share                       |
| 1     | measured: k trials get 1/k each                                      |
| > 1   | nothing is shared, nothing measured: as many as there are GPUs for   |
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tune_speed.study.settings import ResourceConfig
from tune_speed.tuning.ray.node_query import Node

MOST_ON_A_GPU = 16
"""More processes than that are not tried on one GPU."""


class Room(NamedTuple):
    """How many trials have room."""

    here: int
    """On the node, or on a GPU of the node, that is measured."""
    nodes: Sequence[Node]
    """Where trials may run; the first is measured."""
    resources: ResourceConfig

    def everywhere(self, at_once: int) -> int:
        """Returns the trials on all nodes, if `at_once` is best where `here` have room."""
        return max(1, sum(self._on(node, at_once) for node in self.nodes))

    def _on(self, node: Node, at_once: int) -> int:
        fitting = _fitting(node, self.resources)
        if not self.resources.gpu:
            return min(fitting, max(1, round(fitting * at_once / self.here)))
        if self.resources.gpu > 1:
            return min(fitting, int(_gpus(node) / self.resources.gpu))
        return min(fitting, int(_gpus(node)) * at_once)


def room_for(resources: ResourceConfig, nodes: Sequence[Node]) -> Room:
    """Returns how many trials have room; of the nodes, those with room for none are left out."""
    fits = [node for node in nodes if _fitting(node, resources) and _has_gpu(node, resources)]
    if not fits:
        return Room(0, (), resources)
    first = max(fits, key=lambda node: _fitting(node, resources))
    ordered = [first, *(node for node in fits if node is not first)]
    here = _fitting(first, resources)
    if resources.gpu:
        here = max(1, here // int(_gpus(first)))
        here = min(here, MOST_ON_A_GPU, _in_a_gpu(resources.gpu))
    return Room(here, ordered, resources)


def _fitting(node: Node, resources: ResourceConfig) -> int:
    """Returns the trials that a node's cores and memory have room for."""
    needs = {"CPU": resources.cpu, "memory": (resources.memory_gib or 0.0) * 2**30}
    shares = [node.resources.get(n, 0.0) / need for n, need in needs.items() if need]
    return math.floor(min(shares) + 1e-9)


def _in_a_gpu(share: float) -> int:
    if share > 1:
        return 1
    return MOST_ON_A_GPU if share == 1 else math.floor(1 / share + 1e-9)


def _gpus(node: Node) -> float:
    return node.resources.get("GPU", 0.0)


def _has_gpu(node: Node, resources: ResourceConfig) -> bool:
    return _gpus(node) >= max(1.0, resources.gpu) if resources.gpu else True
