"""What several devices ask of a study file."""

import pytest

from tune_speed.study.settings import ResourceConfig
from tune_speed.study.space import SearchSpace
from tune_speed.study.validation import devices_mistakes, most_devices


@pytest.mark.parametrize(
    ("devices", "most"),
    [
        ({}, 1),
        ({"devices": 3}, 3),
        ({"devices": {"choices": [1, 4]}}, 4),
        ({"devices": {"low": 1, "high": 8, "log": True}}, 8),
    ],
)
def test_most_devices_are_those_of_the_largest_trial(devices: dict[str, object], most: int) -> None:
    assert most_devices(SearchSpace.from_tree({"epochs": 1.0, **devices})) == most


@pytest.mark.parametrize(
    ("gpu", "devices", "is_refused"),
    [(0.5, 2, True), (1, 2, False), (0, 2, False), (0.5, 1, False), (2.0, 2, False)],
)
def test_a_gpu_holds_no_more_than_one_device_of_a_trial(
    gpu: float, devices: int, is_refused: bool
) -> None:
    space = SearchSpace.from_tree({"devices": devices})
    mistakes = list(devices_mistakes(space, {"resources": {"gpu": gpu}}))
    assert [m.path for m in mistakes] == [("search", "resources", "gpu")] * is_refused


def test_a_bundle_names_what_ray_counts() -> None:
    assert ResourceConfig(cpu=2).bundle() == {"CPU": 2}
    resources = ResourceConfig(cpu=0.5, gpu=1, memory_gib=2)
    assert resources.bundle() == {"CPU": 0.5, "GPU": 1, "memory": 2**31}


def test_trials_of_several_devices_cannot_be_packed() -> None:
    search = {"concurrent": "auto", "resources": {"gpu": 1}}
    [mistake] = devices_mistakes(SearchSpace.from_tree({"devices": 2}), search)
    assert mistake.path == ("search", "concurrent") and mistake.given == "auto"
    assert not list(devices_mistakes(SearchSpace.from_tree({"epochs": 1.0}), search))
