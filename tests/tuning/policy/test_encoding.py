import functools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from helpers.tuning.spaces import TREE, TREES
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.samplers import RandomSampler

from tune_speed.study.file import load_study, shipped_files
from tune_speed.study.parameter import Parameter
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.samplers import quiet_study, suggest
from tune_speed.tuning.simulation.synthetic import Synthetic

DRAWS = 1500
SPACES = (*shipped_files(), "synthetic", "every kind")
every_space = pytest.mark.parametrize("name", SPACES)


@functools.cache
def space_of(name: str) -> SearchSpace:
    if name == "synthetic":
        return Synthetic(0.04, "fixed_length").space
    if name == "every kind":
        return SearchSpace.from_tree(TREE)
    return load_study(name, check_data=False).space


def encoder_of(**tree: Any) -> Encoder:
    return Encoder(SearchSpace.from_tree(tree))


MIXED = ([64], [64, 64], {"a": 1, "b": (2,)}, math.nan, None, True, 1, 1.0, "1", "true")


def test_choices_of_any_kind_are_known_by_their_positions() -> None:
    parameter = Parameter(name="x", kind="categorical", choices=MIXED)  # type: ignore[arg-type]
    encoder = Encoder(SearchSpace(tree={}, parameters=(parameter,)))
    every = encoder.params(midpoints(len(MIXED)))
    assert [each["x"] for each in every] == list(MIXED)
    # As a storage returns them: tuples as lists, another NaN, keys in another order.
    again = [(64,), (64, 64), {"b": [2], "a": 1}, float("nan"), *MIXED[4:]]
    units = [encoder.units({"x": value}) for value in again]
    assert np.array(units) == pytest.approx(midpoints(len(MIXED)))
    assert [encoder.key({"x": value}) for value in again] == list(map(encoder.key, every))
    assert len(set(map(encoder.key, every))) == len(MIXED)
    with pytest.raises(ValueError, match="one of"):
        encoder.units({"x": [65]})


@pytest.mark.parametrize("choices", [(math.nan, 1.0, 2.0), (1, 1.0, 1), (10**400, 1, 2)])
def test_numbers_that_have_no_line_have_finite_coordinates(choices: Any) -> None:
    parameter = Parameter(name="x", kind="categorical", choices=choices)
    points = Encoder(SearchSpace(tree={}, parameters=(parameter,))).points(midpoints(3))
    assert np.isfinite(points).all()


def midpoints(num: int) -> np.ndarray:
    return ((np.arange(num) + 0.5) / num)[:, None]


def points_of(encoder: Encoder, configurations: list[dict[str, Any]]) -> np.ndarray:
    return encoder.points(np.array([encoder.units(params) for params in configurations]))


def apart(encoder: Encoder, a: dict[str, Any], b: dict[str, Any]) -> float:
    first, second = points_of(encoder, [a, b])
    return float(np.linalg.norm(first - second))


def assert_same(back: dict[str, Any], params: dict[str, Any]) -> None:
    assert list(back) == list(params)
    for name, value in params.items():
        assert type(back[name]) is type(value)
        is_float = isinstance(value, float)
        assert back[name] == (pytest.approx(value, rel=1e-9, abs=1e-9) if is_float else value)


def is_there_and_back(space: SearchSpace, seed: int) -> None:
    encoder = Encoder(space)
    units = np.random.default_rng(seed).random((4, len(space.parameters)))
    configurations = encoder.params(units)
    again = np.array([encoder.units(params) for params in configurations]).reshape(units.shape)
    for params, back in zip(configurations, encoder.params(again), strict=True):
        assert space.read(params) == params
        assert_same(back, params)
    np.testing.assert_allclose(encoder.points(again), encoder.points(units), atol=1e-9)


@every_space
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_params_become_units_and_the_same_params_again(name: str, seed: int) -> None:
    is_there_and_back(space_of(name), seed)


@settings(max_examples=100)
@given(tree=TREES, seed=st.integers(0, 10**6))
def test_random_spaces_go_there_and_back(tree: dict[str, Any], seed: int) -> None:
    is_there_and_back(SearchSpace.from_tree(tree), seed)


@every_space
def test_every_corner_survives_the_way_through_units(name: str) -> None:
    corners = list(space_of(name).corners(limit=50))
    encoder = Encoder(space_of(name))
    back = encoder.params(np.array([encoder.units(params) for params in corners]))
    for params, found in zip(corners, back, strict=True):
        assert_same(found, space_of(name).read(params))


def drawn_by_optuna(space: SearchSpace, num: int) -> list[dict[str, Any]]:
    study = quiet_study(RandomSampler(seed=1))
    return [suggest(space, study.ask()) for _ in range(num)]


@pytest.mark.parametrize("name", ["synthetic", "every kind", "cifar10_resnet18"])
def test_even_units_are_distributed_as_optunas_random_sampler(name: str) -> None:
    space = space_of(name)
    units = np.random.default_rng(0).random((DRAWS, len(space.parameters)))
    ours, theirs = Encoder(space).params(units), drawn_by_optuna(space, DRAWS)
    for parameter in space.parameters:
        a, b = ([p[parameter.name] for p in ps if parameter.name in p] for ps in (ours, theirs))
        limit = 4.5 * math.sqrt(0.25 / len(a) + 0.25 / len(b))
        # The shares of choices, or the shares below each decile of all values.
        cuts = (
            np.quantile(a + b, np.linspace(0.1, 0.9, 9)) if parameter.kind != "categorical" else ()
        )
        for cut in cuts:
            assert abs(np.mean(np.array(a) <= cut) - np.mean(np.array(b) <= cut)) < limit
        shares, expected = Counter(map(repr, a)), Counter(map(repr, b))
        for choice in map(repr, parameter.choices):
            assert abs(shares[choice] / len(a) - expected[choice] / len(b)) < limit


def test_ends_of_an_int_range_get_whole_shares() -> None:
    encoder = encoder_of(x={"low": 2, "high": 5})
    values = [p["x"] for p in encoder.params(midpoints(4000))]
    assert Counter(values) == {2: 1000, 3: 1000, 4: 1000, 5: 1000}


def test_log_int_has_shares_of_the_logarithm() -> None:
    encoder = encoder_of(x={"low": 1, "high": 3, "log": True})
    values = Counter(p["x"] for p in encoder.params(midpoints(10_000)))
    for value in (1, 2, 3):
        share = math.log((value + 0.5) / (value - 0.5)) / math.log(3.5 / 0.5)
        assert values[value] / 10_000 == pytest.approx(share, abs=2e-4)


@pytest.mark.parametrize(
    ("leaf", "values"),
    [
        ({"low": 16, "high": 64, "step": 16}, [16, 32, 48, 64]),
        ({"low": 0.0, "high": 0.3, "step": 0.1}, [0.0, 0.1, 0.2, 0.3]),
        ({"low": 7, "high": 7}, [7]),
        ({"low": 0.5, "high": 0.5}, [0.5]),
    ],
)
def test_steps_and_nothing_between_are_proposed(leaf: dict[str, Any], values: list[float]) -> None:
    proposed = encoder_of(x=leaf).params(np.linspace(0, 1, 401)[:, None])
    found = sorted({p["x"] for p in proposed})
    assert found == pytest.approx(values)
    assert {type(value) for value in found} == {type(values[0])}


def test_what_plays_no_part_does_not_move_a_point() -> None:
    encoder = Encoder(SearchSpace.from_tree({"optimizer": TREE["optimizer"]}))
    units = np.full((50, 3), 0.1)  # The first choice, sgd.
    units[:, 2] = np.linspace(0, 1, 50)
    assert len(np.unique(encoder.points(units), axis=0)) == 1
    np.testing.assert_allclose(encoder.points(units)[0, -1], 0.5)


def test_number_of_coordinates_is_that_of_the_points() -> None:
    for space in map(space_of, SPACES):
        encoder = Encoder(space)
        units = np.random.default_rng(0).random((3, len(space.parameters)))
        assert encoder.points(units).shape == (3, encoder.num_dims)
    assert encoder_of(x=1).points(np.zeros((2, 0))).shape == (2, 0)


@pytest.mark.parametrize(
    ("leaf", "low", "middle", "high"),
    [
        ({"low": 0.01, "high": 1.0, "log": True}, 0.01, 0.1, 1.0),
        ({"low": 10, "high": 20}, 10, 15, 20),
        ({"choices": [1, 2, 3]}, 1, 2, 3),
        ({"choices": [256, 64, 128]}, 64, 128, 256),  # Numbers that span a factor of four.
    ],
)
def test_numbers_lie_as_far_apart_as_they_or_their_logarithms_are(
    leaf: dict[str, Any], low: float, middle: float, high: float
) -> None:
    points = points_of(encoder_of(x=leaf), [{"x": low}, {"x": middle}, {"x": high}])
    np.testing.assert_allclose(points[:, 0], [0, 0.5, 1], atol=1e-9)


@pytest.mark.parametrize(
    "choices", [["a", "b", None, True], [32, 64], [1, 2, "auto"], [False, 1, 2], [0.5, None, 2.0]]
)
def test_names_two_numbers_or_mixed_choices_lie_one_apart(choices: list[Any]) -> None:
    encoder = encoder_of(x={"choices": choices})
    assert encoder.num_dims == len(choices)
    for value in choices[1:]:
        assert apart(encoder, {"x": choices[0]}, {"x": value}) == pytest.approx(1.0)


def test_slopes_of_choices_are_what_they_add_next_to_what_else_does() -> None:
    tree = {"model": {"choices": ["a", "b", "c"]}, "x": {"low": 0.0, "high": 1.0}}
    encoder = Encoder(SearchSpace.from_tree(tree))
    units = np.random.default_rng(0).random((200, 2))
    adds = np.array([0.0, 2.0, -1.0])[np.floor(3 * units[:, 0]).astype(int)]
    slopes = encoder.choice_slopes(units, adds + 5 * units[:, 1])
    added = encoder.points(np.array([[1 / 6, 0.9], [3 / 6, 0.1], [5 / 6, 0.5]])) @ slopes
    assert added - added[0] == pytest.approx([0.0, 2.0, -1.0], abs=0.02)
    # Without choices, or without values, nothing is due to them.
    assert not encoder.choice_slopes(units[:0], adds[:0]).any()
    numbers = Encoder(SearchSpace.from_tree({"x": tree["x"], "n": {"choices": [1, 2, 3]}}))
    assert not numbers.choice_slopes(units, adds).any()
