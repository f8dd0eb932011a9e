"""The configuration that stands for a space."""

import pytest

from tune_speed.study.space import SearchSpace, typical

TREE = {
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
SPACE = SearchSpace.from_tree(TREE)


def test_without_points_it_is_the_middle_of_every_range_and_choice() -> None:
    params = typical(SPACE, [])
    assert params["optimizer"] == "adamw"
    assert params["optimizer.adamw.lr"] == pytest.approx(1e-3)
    assert "optimizer.sgd.lr" not in params
    assert (params["epochs"], params["batch_size"]) == (6.0, 64)
    assert (params["accumulation_steps"], params["workers"]) == (5, 8)


def test_first_point_holds_and_the_middle_fills_what_it_leaves_open() -> None:
    params = typical(SPACE, [{"optimizer.sgd.lr": 0.5, "batch_size": 128}, {"batch_size": 32}])
    assert params["optimizer"] == "sgd" and params["optimizer.sgd.lr"] == 0.5
    assert params["batch_size"] == 128 and params["epochs"] == 6.0


def test_it_is_a_point_of_the_space() -> None:
    params = typical(SPACE, [])
    assert SPACE.read(params) == params
    assert SPACE.build(params)["optimizer"] == {"adamw": {"lr": params["optimizer.adamw.lr"]}}
