import itertools

import pytest
from helpers.experiments.planted import AXES
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.ablation.design import (
    BASE,
    Arm,
    Axis,
    Design,
    Level,
    arms_of,
    read_axes,
    settings_of,
)

NUM_LEVELS = st.lists(st.integers(1, 3), min_size=1, max_size=3)


def numbered(num_levels: list[int]) -> tuple[Axis, ...]:
    return tuple(
        Axis(f"f{i}", tuple(Level(f"f{i}={j}", ((f"f{i}", j),)) for j in range(num)))
        for i, num in enumerate(num_levels)
    )


@pytest.mark.parametrize(
    ("design", "levels"),
    [
        ("one-at-a-time", ["000", "100", "010", "001"]),
        ("leave-one-out", ["000", "011", "101", "110", "111"]),
        ("factorial", ["000", "100", "010", "001", "110", "101", "011", "111"]),
        ("stacking", ["000", "100", "010", "001", "111"]),
        ("cumulative", ["000", "100", "110", "111"]),
    ],
)
def test_arms_of_each_design(design: Design, levels: list[str]) -> None:
    arms = arms_of(AXES, design)
    assert ["".join(map(str, arm.levels)) for arm in arms] == levels


def test_arms_are_named_by_their_levels() -> None:
    names = [arm.name for arm in arms_of(AXES, "cumulative")]
    assert names == [
        "base",
        "accumulation_steps=2",
        "accumulation_steps=2 + precision=bf16",
        "accumulation_steps=2 + precision=bf16 + loader.pin_memory=true",
    ]


@given(NUM_LEVELS)
def test_a_factorial_has_every_combination_once(num_levels: list[int]) -> None:
    arms = arms_of(numbered(num_levels), "factorial")
    expected = itertools.product(*(range(num + 1) for num in num_levels))
    assert sorted(arm.levels for arm in arms) == sorted(expected)
    assert arms[0] == Arm(BASE, (0,) * len(num_levels))
    assert len({arm.name for arm in arms}) == len(arms)


@given(NUM_LEVELS)
def test_one_at_a_time_has_each_level_once(num_levels: list[int]) -> None:
    arms = arms_of(numbered(num_levels), "one-at-a-time")
    assert len(arms) == 1 + sum(num_levels) == len(set(arms))
    assert all(sum(level > 0 for level in arm.levels) == 1 for arm in arms[1:])


@given(st.integers(2, 5), st.sampled_from(["leave-one-out", "stacking", "cumulative"]))
def test_no_arm_comes_twice(num_axes: int, design: Design) -> None:
    arms = arms_of(numbered([1] * num_axes), design)
    assert len({arm.levels for arm in arms}) == len(arms)
    assert arms[0].name == BASE
    assert arms[-1].levels == (1,) * num_axes


def test_a_factorial_of_more_than_64_arms_is_refused() -> None:
    assert len(arms_of(numbered([1] * 6), "factorial")) == 64
    with pytest.raises(ConfigError, match=r"at most 64 arms, but got 72\. Try `one-at-a-time`"):
        arms_of(numbered([1, 1, 1, 2, 2]), "factorial")


@pytest.mark.parametrize("design", ["leave-one-out", "stacking", "cumulative"])
def test_on_and_off_designs_need_two_axes_of_one_level(design: Design) -> None:
    with pytest.raises(ConfigError, match="must have at least two axes, but got one"):
        arms_of(numbered([1]), design)
    with pytest.raises(ConfigError, match="one level on each axis, but got 3 on `f1`"):
        arms_of(numbered([1, 3]), design)


@pytest.mark.parametrize("design", ["leave-one-out", "factorial", "stacking"])
def test_levels_that_overwrite_one_another_are_refused(design: Design) -> None:
    axes = read_axes({"optimizer.lr": 0.1, "optimizer": "adamw"})
    with pytest.raises(ConfigError, match=r"`optimizer\.lr` on two axes"):
        arms_of(axes, design)
    assert arms_of(axes[::-1], design)


def test_a_later_step_may_replace_an_earlier_one() -> None:
    axes = read_axes(
        {"drops": {"drops": {"lr_schedule": "multi_step"}}, "lr_schedule": "one_cycle"}
    )
    last = arms_of(axes, "cumulative")[-1]
    assert settings_of(last, axes) == (
        ("lr_schedule", "multi_step"), ("lr_schedule", "one_cycle"),
    )  # fmt: skip


def test_an_arm_sets_what_its_levels_set() -> None:
    arms = arms_of(AXES, "factorial")
    assert settings_of(arms[0], AXES) == ()
    assert settings_of(arms[5], AXES) == (("accumulation_steps", 2), ("loader.pin_memory", True))
