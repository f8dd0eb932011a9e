"""Chooses the nodes of a cluster that run a study's trials: those with the study's type of device.

Times on different devices are not comparable, so a study has one type of device, from its first
trial to its last. Nodes that join later are queried too, in a thread.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.text import counted, setting
from tune_speed.study.settings import ResourceConfig
from tune_speed.tuning.driver.prior_trials import Machine
from tune_speed.tuning.ray.node_query import Answer, Node, RayQueries, alive_nodes, here

ANSWER_S = 120.0
"""Longest wait for the first answer: a process on a busy node imports torch."""
STRAGGLERS_S = 20.0
"""How long the others are waited for once one node has answered [s]; they join later."""
POLL_S = 5.0


class Nodes(AbstractContextManager["Nodes"]):
    """The nodes of the cluster that Ray is connected to, and their devices."""

    def __init__(
        self,
        resources: ResourceConfig,
        *,
        pin: str | None,
        is_local: bool,
        study: Path | None = None,
    ) -> None:
        """Queries all nodes and returns; Ray must be connected.

        `resources` are of one device of a trial, `pin` is the type of device of the study's trials
        so far. This machine `is_local` if it is the only node. Nodes see `study`, a file, where
        storage is shared.
        """
        self._resources, self._pin = resources, pin
        self.device_type = resources.device_type or self._pin
        """Of all trials; None: not known yet."""
        self._threads = max(1, int(resources.cpu))
        self.is_local, device = is_local, "cuda" if resources.gpu else "cpu"
        self._queries = RayQueries(device=device, cpu_threads=self._threads, study=study)
        self._nodes: dict[str, Node] = {}
        self._kinds: dict[str, Answer | str] = {}
        """What each node has, or why no trial can run there."""
        self.allowed: tuple[str, ...] = ()
        """Ray's ids of the nodes where trials may run; empty where any will do."""
        self._messages: list[str] = []
        self._is_over = threading.Event()
        self._watcher: threading.Thread | None = None
        if not is_local:
            self._query_new()
        # A local machine is queried if it must be: its CPU is known, a GPU's name costs seconds.
        elif not resources.gpu:
            self._kinds[""] = here(cpu_threads=self._threads)
        elif self.device_type:
            self._query_new()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._watcher is not None:
            self._watcher.join(2 * POLL_S)

    def settle(self) -> None:
        """Waits for answers, pins the study, then watches. Raises: ConfigError, ServiceError."""
        if self.device_type and self._pin and self.device_type != self._pin:
            raise ConfigError(
                f"a study must stay on the type of device of its first trials, {self._pin}, but got"
                f" search.resources.device_type={self.device_type}. Take that back, or begin"
                f" another study with {setting('study', 'NAME')}."
            )
        if self.is_local and not self._kinds and not self.device_type:
            return
        if not self.is_local or not self._kinds:
            self._wait()
        counts = Counter(machine.device for machine in self._machines().values())
        if not self.device_type:  # What most have; of equals the first by name.
            self.device_type = min(counts, key=lambda device: (-counts[device], device))
        self._refuse_missing(self.device_type, counts)
        if self.is_local:
            return
        self._update_allowed()
        self._note_nodes()
        self._watcher = threading.Thread(target=self._watch, name="nodes", daemon=True)
        self._watcher.start()

    def placement(self) -> dict[str, Any]:
        return {"node_ids": list(self.allowed), "device_type": self.device_type}

    def messages(self) -> tuple[str, ...]:
        lines = tuple(self._messages)
        del self._messages[: len(lines)]
        return lines

    def machine(self) -> Machine:
        if not self._kinds:
            self._query_new()
            self._wait()
        first = max(self._machines().values(), key=lambda each: each.device == self.device_type)
        return Machine(first.device, first.torch)

    def _query_new(self) -> None:
        for node in alive_nodes():
            if node.node_id in self._nodes:
                continue
            self._nodes[node.node_id] = node
            if (lack := _lack(node, self._resources)) is not None:
                self._kinds[node.node_id] = lack
            else:
                self._queries.submit(node.node_id)

    def _wait(self) -> None:
        started, first_s = time.monotonic(), None
        while set(self._nodes) - set(self._kinds):
            self._kinds.update(self._queries.results(timeout_s=0.5))
            waited_s = time.monotonic() - started
            if first_s is None and self._machines():
                first_s = waited_s
            if waited_s > ANSWER_S or (first_s is not None and waited_s > first_s + STRAGGLERS_S):
                break
        if not self._machines():
            reasons = "; ".join(self._left_out()) or "there is no node"
            raise ServiceError(
                "a node of the cluster must name the device of its trials, but none did:"
                f" {reasons}. Wait until a node is there, or change search.resources."
            )

    def _machines(self) -> dict[str, Answer]:
        return {i: kind for i, kind in self._kinds.items() if isinstance(kind, Answer)}

    def _refuse_missing(self, device_type: str, there: Mapping[str, int]) -> None:
        if device_type in there:
            return
        found = ", ".join(f"{name} ({counted(n, 'node')})" for name, n in sorted(there.items()))
        if self._pin is not None:
            raise ConfigError(
                f"a study must stay on the type of device of its first trials, {self._pin}: times"
                f" on others do not compare. But here is only {found}. Go on where there is one, or"
                f" begin another study with {setting('study', 'NAME')}."
            )
        hint = did_you_mean(device_type, list(there)) or "."
        raise ConfigError(
            f"search.resources.device_type must be a device of the cluster, but got {device_type}"
            f" and there is {found}{hint}"
        )

    def _update_allowed(self) -> None:
        # A lost node stays: it does no harm, and with another list Tune would reuse no process.
        machines = sorted(self._machines().items())
        self.allowed = tuple(i for i, m in machines if m.device == self.device_type)

    def _note_nodes(self) -> None:
        left_out = self._left_out()
        if len(self._nodes) > 1 or left_out:
            line = f"trials run on {self.device_type} ({counted(len(self.allowed), 'node')})"
            self._messages.append("; ".join([line, *(f"left out: {each}" for each in left_out)]))
        machines = self._machines()
        blind = [self._nodes[i].address for i in self.allowed if not machines[i].sees_study]
        if blind:
            self._messages.append(
                f"the study's folder is not visible on {', '.join(blind)}: trials there leave no"
                " checkpoints or weights (search.storage_path may name storage that all nodes see)"
            )

    def _left_out(self) -> list[str]:
        return [
            f"{node.address}, {why}"
            for node_id, node in self._nodes.items()
            if (why := self._why_not(node_id)) is not None
        ]

    def _why_not(self, node_id: str) -> str | None:
        kind = self._kinds.get(node_id)
        if kind is None:
            return "which has not answered yet"
        if isinstance(kind, str):
            return f"as {kind}"
        return None if kind.device == self.device_type else f"which has {kind.device}"

    def _watch(self) -> None:
        while not self._is_over.wait(POLL_S):
            try:
                self._query_new()
                new = self._queries.results(timeout_s=POLL_S)
            except (RayError, ConnectionError, RuntimeError, TimeoutError):
                continue  # The search itself reports that the cluster is in trouble.
            self._kinds.update(new)
            self._update_allowed()
            for node_id in new:
                why = self._why_not(node_id)
                use = "trials run there too" if why is None else f"left out, {why}"
                self._messages.append(f"a node joined, {self._nodes[node_id].address}: {use}")


def _lack(node: Node, resources: ResourceConfig) -> str | None:
    for name, wanted in resources.bundle().items():
        there = node.resources.get(name, 0.0)
        if there < wanted:
            unit = 2**30 if name == "memory" else 1
            what = "GiB of memory" if name == "memory" else name
            return f"it has {there / unit:g} {what} and a trial needs {wanted / unit:g}"
    return None
