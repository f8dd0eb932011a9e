"""Ranges at whose end the best configurations lie."""

import pytest

from tune_speed.study.parameter import at_ends
from tune_speed.study.space import SearchSpace

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
    """Returns what is said of configurations of these rates and epochs."""
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
