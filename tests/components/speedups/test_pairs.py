"""Every pair of techniques either trains together or is refused with a reason."""

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import pydantic
import pytest
import torch
from techniques_net import SETTINGS, TECHNIQUES, Everything, EverythingNetwork, changes
from training import CPU, make_recipe, make_splits, make_workload, to_end

from tune_speed.components.speedups import SPEEDUPS
from tune_speed.core.records import RunResult, Status
from tune_speed.data import ORDERS
from tune_speed.training.build import Job
from tune_speed.training.loop import train


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    slots = {**first.get("speedups", {}), **second.get("speedups", {})}
    return {**first, **second, **({"speedups": slots} if slots else {})}


def both(first: str, second: str) -> dict[str, Any]:
    return merged(changes(first), changes(second))


def slot(name: str) -> str:
    """Returns what two techniques cannot both stand in."""
    return "order" if name in ORDERS else SPEEDUPS[name].slot


def reason(first: str, second: str) -> str | None:
    """Returns why two techniques declare that they exclude each other, or None."""
    told = [
        SPEEDUPS[a].conflicts.get(b) for a, b in ((first, second), (second, first)) if a in SPEEDUPS
    ]
    return next((text for text in told if text), None)


def two_steps(**fields: Any) -> RunResult:
    recipe = make_recipe(model=Everything(), **{"epochs": 0.7, **fields})
    run = train(Job(make_workload(), recipe, make_splits(), seed=0, device=CPU))
    return to_end(run)


@functools.cache
def alone(name: str) -> RunResult:
    return two_steps(**changes(name))


def fields_of(names: tuple[str, ...]) -> dict[str, Any]:
    return functools.reduce(merged, map(changes, names))


def grown(group: tuple[str, ...], names: Iterable[str]) -> tuple[str, ...]:
    """Returns the group with those of the others that go with all who are in it."""
    for name in names:
        if all(slot(name) != slot(other) and not reason(name, other) for other in group):
            group = (*group, name)
    return group


def groups(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Returns groups of techniques that exclude none of each other, with each pair in some."""
    left, found = list(pairs), []
    while left:
        first, second = next(iter(left))
        group = grown((first, second), [n for n in TECHNIQUES if any(n in pair for pair in left)])
        found.append(group)
        left = [pair for pair in left if not {*pair} <= {*group}]
    return found


PAIRS = [(a, b) for a, b in itertools.combinations(TECHNIQUES, 2) if slot(a) != slot(b)]
COMPATIBLE = [pair for pair in PAIRS if reason(*pair) is None]
EXCLUSIVE = [pair for pair in PAIRS if reason(*pair) is not None]


@pytest.mark.parametrize("name", TECHNIQUES)
def test_technique_trains_by_itself(name: str) -> None:
    result = alone(name)
    assert result.status == Status.MISSED and result.steps >= 2
    assert result.final is not None and math.isfinite(result.final.loss)


@pytest.mark.parametrize("names", groups(COMPATIBLE))
def test_techniques_of_each_compatible_pair_train_together_with_others(
    names: tuple[str, ...],
) -> None:
    result = two_steps(**fields_of(names))
    assert result.status == Status.MISSED
    assert result.final is not None and result.final.loss is not None
    assert math.isfinite(result.final.loss)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), COMPATIBLE)
def test_compatible_pair_trains_two_steps(first: str, second: str) -> None:
    result = two_steps(**both(first, second))
    assert result.status == Status.MISSED
    assert result.final is not None and result.final.loss is not None
    assert math.isfinite(result.final.loss)


@pytest.mark.parametrize(("first", "second"), EXCLUSIVE)
def test_exclusive_pair_is_refused_with_its_reason(first: str, second: str) -> None:
    with pytest.raises(pydantic.ValidationError) as refusal:
        make_recipe(**both(first, second))
    assert str(reason(first, second)) in str(refusal.value)


@pytest.mark.parametrize("setting", SETTINGS)
def test_techniques_go_with_each_setting_in_groups_or_say_why_not(setting: str) -> None:
    left = []
    for name in TECHNIQUES:
        try:
            make_recipe(**both(name, setting))
            left.append(name)
        except pydantic.ValidationError as refusal:
            assert name in str(refusal)
    assert len(left) > len(TECHNIQUES) / 2
    while left:
        group = grown((left[0],), left)
        result = two_steps(**fields_of((*group, setting)))
        assert result.status in (Status.MISSED, Status.DIVERGED), group
        left = [name for name in left if name not in group]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", TECHNIQUES)
def test_technique_goes_with_each_setting_or_says_why_not(name: str, setting: str) -> None:
    try:
        fields = both(name, setting)
        result = two_steps(**fields)
    except pydantic.ValidationError as refusal:
        assert name in str(refusal)
        return
    assert result.status in (Status.MISSED, Status.DIVERGED)


def test_training_with_a_technique_follows_from_the_seed() -> None:
    for name in TECHNIQUES:
        first, again = alone(name), two_steps(**changes(name))
        assert [e.loss for e in first.evaluations] == [e.loss for e in again.evaluations], name


def test_network_of_these_tests_has_what_techniques_act_on() -> None:
    model = EverythingNetwork(1, 3)
    assert torch.equal(model.eval()(torch.ones(2, 1, 6, 6)), model(torch.ones(2, 1, 6, 6)))
