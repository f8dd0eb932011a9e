"""At the end of a search, what could be first is timed side by side, in a process of its own."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from tune_speed.components.plugins.registry import shipped
from tune_speed.core.records import StepTime
from tune_speed.training.trial import TrialSpec
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.ray.node_query import on_nodes, set_up_device, set_up_worker
from tune_speed.tuning.ray.nodes import Nodes

ROUNDS = 3
SHARE = 0.02
"""Of a search's time that it may take."""
START_S, WINDOW_S = 6.0, 1.2
"""What a new process and one window take, about [s]."""
POLL_S = 0.2
SAME = {"study", "trial_id", "params", "recipe", "workload", "workload_hash", "space_hash"}
"""Fields that the trial has in its record."""

_log = logging.getLogger(__name__)


def time_rivals(
    controller: SearchController, nodes: Nodes, *, on_tick: Callable[[], None]
) -> tuple[StepTime, ...]:
    """Returns windows of what could be first, in turn; none where time or a process lacks."""
    rivals, resources = controller.learning.rivals(), controller.study.search.resources
    needed_s = START_S + ROUNDS * WINDOW_S * len(rivals)
    if len(rivals) < 2 or needed_s > SHARE * controller.elapsed_s:
        return ()
    placement = nodes.placement()
    there = on_nodes(placement["node_ids"]) or None
    # An actor: cancelling a task that has just failed ends the driver (a check in Ray 2.60).
    timer = ray.remote(_Timer).options(
        num_cpus=resources.cpu, num_gpus=resources.gpu, label_selector=there
    )
    actor = timer.remote(placement["device_type"], shipped())
    specs = (
        TrialSpec(
            **record.model_dump(include=SAME),
            seed=record.runs[-1].seed,
            allotment=controller.allotment,
        )
        for record in rivals
    )
    texts = [each.model_dump_json() for each in specs]
    try:
        found = _wait(actor.measure.remote(texts), needed_s, on_tick)
        return tuple(map(StepTime.model_validate_json, found))
    except Exception:
        _log.info("what could be first was not timed side by side", exc_info=True)
        return ()
    finally:
        ray.kill(actor)


def _wait(reference: Any, limit_s: float, on_tick: Callable[[], None]) -> Sequence[str]:
    for _ in range(int(3 * limit_s / POLL_S)):
        on_tick()
        with suppress(GetTimeoutError):
            found: Sequence[str] = ray.get(reference, timeout=POLL_S)
            return found
    raise TimeoutError(f"no windows after {3 * limit_s:.0f} s")


class _Timer:
    def __init__(self, device_type: str | None, plugins: str) -> None:
        set_up_worker(plugins)
        self._device_type = device_type

    def measure(self, specs: Sequence[str]) -> list[str]:
        from tune_speed.training.side_by_side import time_side_by_side

        read = [TrialSpec.model_validate_json(each) for each in specs]
        set_up_device(read[0].allotment, self._device_type)
        return [each.model_dump_json() for each in time_side_by_side(read, rounds=ROUNDS)]
