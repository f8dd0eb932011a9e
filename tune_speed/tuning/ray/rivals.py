"""At the end of a search, what could be first is timed side by side, in a process of its own."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

from tune_speed.components.plugins.registry import shipped
from tune_speed.core.records import StepTime, TrialRecord
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import TrialSpec
from tune_speed.training.workload import Workload
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.ray.node_query import on_nodes, set_up_device
from tune_speed.tuning.ray.nodes import Nodes
from tune_speed.tuning.ray.worker import set_up_worker

ROUNDS = 3
SHARE = 0.03
"""Of a search's time that it may take."""
START_S, WINDOW_S = 10.0, 1.5
"""What a new process and one window take at most, about [s]."""
POLL_S = 0.2

_log = logging.getLogger(__name__)


def time_rivals(
    controller: SearchController, nodes: Nodes, *, on_tick: Callable[[], None]
) -> tuple[StepTime, ...]:
    """Returns windows of what could be first, measured in turn; none where there is no time for it.

    Ends early, without an error, where no process can be had or one fails: a tie then stays one.
    """
    rivals = controller.rivals()
    needed_s = START_S + ROUNDS * WINDOW_S * len(rivals)
    if not rivals or needed_s > SHARE * controller.elapsed_s:
        return ()
    placement, resources = nodes.placement(), controller.study.search.resources
    task = ray.remote(_measure).options(
        num_cpus=resources.cpu,
        num_gpus=resources.gpu,
        label_selector=on_nodes(placement["node_ids"]) or None,
    )
    specs = [_spec_of(controller, record).model_dump_json() for record in rivals]
    reference = task.remote(specs, placement["device_type"], shipped())
    try:
        return tuple(
            StepTime.model_validate_json(each) for each in _wait(reference, needed_s, on_tick)
        )
    except Exception:
        _log.info("what could be first was not timed side by side", exc_info=True)
        ray.cancel(reference, force=True)
        return ()


def _wait(reference: Any, limit_s: float, on_tick: Callable[[], None]) -> Iterator[str]:
    for _ in range(int(3 * limit_s / POLL_S)):
        on_tick()
        try:
            yield from ray.get(reference, timeout=POLL_S)
        except GetTimeoutError:
            continue
        return
    raise TimeoutError(f"no windows after {3 * limit_s:.0f} s")


def _spec_of(controller: SearchController, record: TrialRecord) -> TrialSpec:
    return TrialSpec(
        study=record.study,
        trial_id=record.trial_id,
        params=record.params,
        recipe=Recipe.model_validate(record.recipe),
        workload=Workload.model_validate(record.workload),
        workload_hash=record.workload_hash,
        space_hash=record.space_hash,
        seed=record.runs[-1].seed,
        allotment=controller.allotment,
    )


def _measure(specs: Sequence[str], device_type: str | None, plugins: str) -> list[str]:
    set_up_worker(plugins)
    from tune_speed.training.side_by_side import time_side_by_side

    read = [TrialSpec.model_validate_json(each) for each in specs]
    set_up_device(read[0].allotment, device_type)
    return [each.model_dump_json() for each in time_side_by_side(read, rounds=ROUNDS)]
