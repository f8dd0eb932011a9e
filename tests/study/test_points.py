"""Points of a space, and the configuration that stands for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.study.space import SearchSpace, point_mistakes, read_point, typical

SPACE = SearchSpace.from_tree(
    {
        "optimizer": {
            "choices": {
                "sgd": {"lr": {"low": 0.1, "high": 1.0}, "momentum": {"low": 0.5, "high": 0.9}},
                "adamw": {"lr": {"low": 0.001, "high": 0.01}},
            }
        },
        "epochs": {"low": 1, "high": 8},
        "batch_size": 64,
    }
)
PATH = ("search", "points_to_evaluate")


@pytest.mark.parametrize(
    ("point", "name", "said"),
    [
        ({}, "", "must give a value"),
        ({"epoch": 3}, "epoch", "Did you mean `epochs`?"),
        ({"batch_size": 64}, "batch_size", "Searched are optimizer, optimizer.sgd.lr"),
        ({"epochs": 9}, "epochs", "must be from 1 to 8, but got 9"),
        ({"epochs": True}, "epochs", "must be a number, but got true"),
        ({"optimizer": "adam"}, "optimizer", 'must be one of "sgd", "adamw", but got "adam"'),
        (
            {"optimizer": "adamw", "optimizer.sgd.lr": 0.5},
            "optimizer.sgd.lr",
            'must be left out unless optimizer is "sgd", but got optimizer: "adamw"',
        ),
        (
            {"optimizer.sgd.lr": 0.5, "optimizer.adamw.lr": 0.005},
            "optimizer.adamw.lr",
            'must be left out unless optimizer is "adamw", but got optimizer: "sgd"',
        ),
    ],
)
def test_mistake_in_a_point_is_named(point: dict[str, object], name: str, said: str) -> None:
    (mistake,) = point_mistakes(SPACE, [{"epochs": 2}, point], PATH)
    assert mistake.path == (*PATH, 1, *([name] if name else []))
    assert said in str(mistake.problem())


def test_parameter_of_a_branch_implies_the_branch() -> None:
    point = {"epochs": 3.0, "optimizer.sgd.momentum": 0.9}
    assert list(point_mistakes(SPACE, [point], PATH)) == []
    assert list(read_point(SPACE, point).items()) == [
        ("optimizer", "sgd"),
        ("optimizer.sgd.momentum", 0.9),
        ("epochs", 3),
    ]


@given(st.sampled_from(list(SPACE.corners())), st.data())
def test_every_part_of_a_configuration_is_a_point(params: dict[str, object], data) -> None:
    names = data.draw(st.sets(st.sampled_from(sorted(params)), min_size=1))
    part = {name: params[name] for name in names}
    assert list(point_mistakes(SPACE, [part], PATH)) == []
    read = read_point(SPACE, part)
    assert part.items() <= read.items() <= params.items()


WIDE_TREE = {
    "optimizer": {
        "choices": {
            "sgd": {"lr": {"low": 0.01, "high": 1.0, "log": True}, "momentum": 0.9},
            "adamw": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
        }
    },
    "epochs": {"low": 2.0, "high": 10.0},
    "batch_size": {"choices": [32, 64, 128]},
    "accumulation_steps": {"low": 1, "high": 9},
    "workers": {"low": 1, "high": 64, "log": True},
}
WIDE = SearchSpace.from_tree(WIDE_TREE)


def test_without_points_it_is_the_middle_of_every_range_and_choice() -> None:
    params = typical(WIDE, [])
    assert params["optimizer"] == "adamw"
    assert params["optimizer.adamw.lr"] == pytest.approx(1e-3)
    assert "optimizer.sgd.lr" not in params
    assert (params["epochs"], params["batch_size"]) == (6.0, 64)
    assert (params["accumulation_steps"], params["workers"]) == (5, 8)


def test_first_point_holds_and_the_middle_fills_what_it_leaves_open() -> None:
    params = typical(WIDE, [{"optimizer.sgd.lr": 0.5, "batch_size": 128}, {"batch_size": 32}])
    assert params["optimizer"] == "sgd" and params["optimizer.sgd.lr"] == 0.5
    assert params["batch_size"] == 128 and params["epochs"] == 6.0


def test_it_is_a_point_of_the_space() -> None:
    params = typical(WIDE, [])
    assert WIDE.read(params) == params
    assert WIDE.build(params)["optimizer"] == {"adamw": {"lr": params["optimizer.adamw.lr"]}}
