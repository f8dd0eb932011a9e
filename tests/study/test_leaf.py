import pytest

from tune_speed.core.errors import ConfigError
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
