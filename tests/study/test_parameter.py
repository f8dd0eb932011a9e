"""Wrong leaves, and ranges at whose end the best configurations lie."""

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.study.parameter import at_ends
from tune_speed.study.space import SearchSpace, tree_mistakes

WRONG_LEAVES = [
    ({"low": 2, "high": 1}, "low", "`low` must be at most `high`, but got low 2, high 1"),
    ({"low": 0, "high": 1, "log": True}, "low", "above 0 with `log: true`, but got 0"),
    ({"low": 1, "high": 9, "log": True, "step": 1}, "step", "either `log: true` or `step`"),
    ({"low": 0, "high": 10, "step": 3}, "high", "whole steps"),
    ({"low": 0.1, "high": 0.5, "step": 0.3}, "high", "Try high: 0.4 or 0.7."),
    ({"low": 0, "high": 1, "step": 0}, "step", "`step` must be above 0, but got 0"),
    ({"low": 0, "high": 1, "step": -1}, "step", "`step` must be above 0"),
    ({"low": 0}, "", "both `low` and `high`"),
    ({"high": 0, "log": True}, "", "both `low` and `high`"),
    ({"low": "1e-3", "high": 1}, "low", 'must be a number, but got "1e-3". Remove the quotes.'),
    ({"low": False, "high": 1}, "low", "must be a number, but got false"),
    ({"low": 0, "high": float("inf")}, "high", "must be a number"),
    ({"low": 0, "high": 1, "log": "yes"}, "log", "true or false"),
    ({"low": 0, "high": 1, "setp": 1}, "setp", "Did you mean `step`?"),
    ({"choices": [1], "low": 1}, "low", "may have only choices"),
    ({"choices": []}, "", "must not be empty"),
    ({"choices": {}}, "", "must not be empty"),
    ({"choices": "sgd"}, "", "must be a list"),
    ({"choices": [1, 2, 1.0]}, "", "choices must differ, but got 1.0 again"),
    ({"choices": [True, 1]}, "", "choices must differ"),
    ({"choices": [[1], 2]}, "", "single finite value"),
    ({"choices": [float("nan")]}, "", "single finite value"),
    ({"choices": {"a.b": {}}}, "a.b", "without dots"),
    ([{"low": 0, "high": 1}], "", "a fixed value must be"),
    (float("nan"), "", "a fixed value must be"),
]


@pytest.mark.parametrize(("leaf", "key", "must"), WRONG_LEAVES)
def test_wrong_leaf_is_refused_in_words(leaf, key, must):
    with pytest.raises(ConfigError) as caught:
        SearchSpace.from_tree({"field": {"inner": leaf}})
    (problem,) = caught.value.problems
    assert must in str(problem)
    assert problem.path == ".".join(filter(None, ["field.inner", key]))


@pytest.mark.parametrize("tree", [[], None, {"low": 0, "high": 1}, {"choices": {"a": {}}}])
def test_space_must_be_a_mapping_of_fields(tree):
    with pytest.raises(ConfigError, match="must be a mapping of fields"):
        SearchSpace.from_tree(tree)


def test_every_wrong_leaf_is_found_in_one_go():
    tree = {
        "a": {"choices": {"x": {"p": {"low": 1}}, "y": {"q": {"choices": []}}}},
        "b": {"low": 3, "high": 2},
        "c.d": 1,
        "": 2,
    }
    names = [mistake.problem().path for mistake in tree_mistakes(tree)]
    assert names == ["a.x.p", "a.y.q", "b.low", "c.d", ""]


def test_range_of_equal_ends_is_one_value():
    space = SearchSpace.from_tree({"a": {"low": 2, "high": 2, "log": True}})
    assert list(space.points()) == [{"a": 2}]


SPACE = SearchSpace.from_tree(
    {
        "optimizer": {
            "choices": {"sgd": {"lr": {"low": 0.01, "high": 1.0, "log": True}}, "adamw": {}}
        },
        "epochs": {"low": 2, "high": 102},
        "batch_size": {"choices": [32, 64]},
    }
)


def lines(*best: tuple[float, int]) -> list[str]:
    named = [
        {"optimizer": "sgd", "optimizer.sgd.lr": lr, "epochs": epochs, "batch_size": 32}
        for lr, epochs in best
    ]
    # Of those in which a range plays no part, nothing is counted.
    others = [{"optimizer": "adamw", "epochs": 50, "batch_size": 32}] * 2
    return list(at_ends(SPACE.parameters, named + others))


def test_range_with_most_of_the_best_at_an_end_is_named_with_that_end() -> None:
    (line,) = lines((0.01, 20), (0.0101, 30), (0.0109, 40), (0.3, 50))
    assert line == "optimizer.sgd.lr, 3 of the best 4 at 0.01: better ones may lie below that"
    (line,) = lines((0.1, 102), (0.1, 101), (0.1, 101))
    assert line == "epochs, 3 of the best 5 at 102: better ones may lie above that"


@pytest.mark.parametrize(
    "best",
    [
        pytest.param([(0.01, 20), (0.01, 30)], id="too few"),
        pytest.param([(0.01, 20)] * 3 + [(0.1, 20)] * 4, id="less than half"),
        # 2 % of two decades above the end: 0.01 * 100**0.02 = 0.01097.
        pytest.param([(0.0111, 20)] * 5, id="not that near over the logarithm"),
        pytest.param([(0.1, 5)] * 5, id="not that near"),
    ],
)
def test_nothing_is_said_of_other_ranges(best: list[tuple[float, int]]) -> None:
    assert lines(*best) == []
