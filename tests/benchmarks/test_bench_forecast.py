"""What the benchmark of forecasts learns, and what it sees of a search."""

import math
from typing import Any

import numpy as np
import pytest
from bench_forecast import Cut, cut_of, learned

from tune_speed.core.forecast import FINEST, Law


def test_constants_are_found_again_from_searches_that_follow_the_law() -> None:
    rng, true = np.random.default_rng(0), Law(9.0, 1.2, 0.5, 0.8, by_worth=0.7, by_runs=0.3)
    cuts = []
    for cut, worth, runs in zip(
        rng.choice([0.1, 0.25, 0.5, 0.75], 3000),
        np.exp(rng.uniform(0.5, 3.5, 3000)),
        rng.integers(6, 200, 3000),
        strict=True,
    ):
        law = true.at(worth, int(runs))
        fall = law.fall(rng.uniform(1e-9, 1.0), 1 / cut - 1)
        cuts.append(Cut("zoo", True, 10.0, cut, int(runs), worth, 9.0, fall, math.inf))
    found = learned(cuts)
    assert found[:3] == pytest.approx(true[:3], rel=0.15)
    assert (found.by_worth, found.by_runs) == pytest.approx((0.7, 0.3), abs=0.06)
    # The searches fall as evenly as the law says, so that its own level holds.
    assert found.level == pytest.approx(0.8, abs=0.03)
    assert learned(cuts, is_constant=True)[4:] == (0.0, 0.0)


def test_a_cut_sees_what_had_ended_by_then_and_a_smaller_budget_what_ends_within_it() -> None:
    ended: list[list[Any]] = [[0.5 * (i + 1), "missed", 0.5 + 0.03 * i, 0.25] for i in range(14)]
    ended[2:3] = [[1.5, "capped", None, 0.5]]
    ended.append([8.0, "reached", 0.92, 1.0])
    row = {"kind": "zoo", "far": False, "seed": 0, "target": 0.9, "trials": ended}
    assert cut_of(row, 5.0, 0.5) is None
    small, large = cut_of(row, 5.0, 0.75), cut_of(row, 10.0, 0.5)
    assert small is not None and large is not None
    # Seven trials by 3.75, one of them twice as long as the others and stopped; at 5.0 the tenth.
    assert (small.runs, small.worth) == (6, (6 * 0.25 + 0.5) / 0.5)
    assert small.fall == pytest.approx(math.log((0.32 + FINEST) / (0.23 + FINEST)))
    assert small.hit == math.inf and large.hit == pytest.approx(0.6)
    assert cut_of(row, 20.0, 0.5) is None
