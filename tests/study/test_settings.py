"""Durations, and what several devices ask of a study file."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.study.settings import ResourceConfig, parse_duration_s
from tune_speed.study.space import SearchSpace
from tune_speed.study.validation import devices_mistakes, most_devices


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("2d 1s", 172801), (90, 90)],
)
def test_duration_is_read_in_its_units(text, seconds):
    assert parse_duration_s(text) == seconds


@given(
    st.integers(0, 30), st.integers(0, 99), st.integers(0, 99), st.integers(0, 999), st.booleans()
)
def test_duration_is_the_sum_of_its_parts(days, hours, minutes, seconds, zeros):
    parts = {"d": days, "h": hours, "m": minutes, "s": seconds}
    text = "".join(f"{n}{unit}" for unit, n in parts.items() if n or zeros)
    whole = datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if whole:
        assert parse_duration_s(text) == whole.total_seconds()
        return
    with pytest.raises(ValueError):
        parse_duration_s(text)


@pytest.mark.parametrize(
    "text", ["", "s", "90", "1m1h", "-1s", "1e3s", "1 hour", "0s", 0, -5, "9" * 400 + "s"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="must be a duration above 0"):
        parse_duration_s(text)


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
