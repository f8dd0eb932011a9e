import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.making import make_record

from tune_speed.core.records import StepTime
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.trial import Allotment
from tune_speed.tuning.ray import rivals
from tune_speed.tuning.ray.compat import without_bystanders

WORKLOAD = {"dataset": {"name": "digits"}, "target": {"metric": "accuracy", "value": 0.9}}
RECIPE = {"model": "resnet20", "batch_size": 8, "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1}


def controller(*changes: dict[str, Any], elapsed_s: float = 3600.0) -> Any:
    """Returns what a search that is over knows of its rivals, which are these changes."""
    records = tuple(
        make_record(f"t000{number}", study="rival").model_copy(
            update={"recipe": RECIPE | change, "workload": WORKLOAD}
        )
        for number, change in enumerate(changes)
    )
    search = SimpleNamespace(resources=ResourceConfig(cpu=1))
    return SimpleNamespace(
        learning=SimpleNamespace(rivals=lambda: records),
        elapsed_s=elapsed_s,
        study=SimpleNamespace(search=search),
        allotment=Allotment(device="cpu"),
    )


ANYWHERE: Any = SimpleNamespace(placement=lambda: {"node_ids": [], "device_type": None})


def measured_by_ray(changes: list[tuple[dict[str, Any], ...]]) -> list[tuple[StepTime, ...]]:
    import ray

    with without_bystanders():
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        return [
            rivals.time_rivals(controller(*each), ANYWHERE, on_tick=lambda: None)
            for each in changes
        ]
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_they_take_turns_and_what_cannot_be_timed_ends_no_search() -> None:
    changes: list[tuple[dict[str, Any], ...]] = [
        ({}, {"batch_size": 16}),
        ({}, {"model": {"resnet20": {"weights_file": "nothing.pt"}}}),
    ]
    # In a process of its own, as Ray's driver ends with whatever Ray stops later.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        windows, none = pool.submit(measured_by_ray, changes).result(timeout=300)
    keys = [each.key for each in windows]
    assert keys == keys[:2] * rivals.ROUNDS and len(set(keys)) == 2
    assert {each.measured_in for each in windows} == {"rival/side-by-side"}
    assert none == ()


def test_nothing_is_timed_where_it_would_take_more_than_its_share_or_there_is_no_rival() -> None:
    short = controller({}, {"batch_size": 16}, elapsed_s=60.0)
    for each in (short, controller()):
        assert rivals.time_rivals(each, ANYWHERE, on_tick=lambda: None) == ()
