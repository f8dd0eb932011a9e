from dataclasses import replace

import numpy as np
import pytest
from helpers.reporting.figures import line, make_part, make_trial, sketched

from tune_speed.reporting.figures.canvas import LIGHT
from tune_speed.reporting.figures.front import COST, Priced, front_of
from tune_speed.reporting.leaderboard.ranking import Row, make_row


def row(name: str, cost: float | None, time_s: float, devices: str = "H200") -> Row:
    made = make_row(make_trial(name, time_s=time_s).record, run_id=None, search=None)
    return made.model_copy(update={"expected_cost": cost, "devices": devices})


@pytest.mark.parametrize("seed", range(5))
def test_front_is_the_pareto_set(seed: int) -> None:
    draws = np.random.default_rng(seed).integers(1, 30, size=(40, 2))
    found = [Priced(float(c), float(t), "H200", f"t{n}") for n, (c, t) in enumerate(draws)]
    pairs = {(each.cost, each.time_s) for each in found}
    beaten = {a for a in pairs for b in pairs - {a} if b[0] <= a[0] and b[1] <= a[1]}
    assert [(each.cost, each.time_s) for each in front_of(found)] == sorted(pairs - beaten)


def test_each_row_has_a_point_among_those_of_its_devices() -> None:
    rows = (row("t0", 1.0, 20.0), row("t1", 2.0, 30.0), row("t2", 4.0, 10.0, "2 x H200"))
    sketch = sketched(COST, replace(make_part(make_trial("t0")), priced=rows))
    assert line(sketch, "priced-0") == [(1.0, 20.0), (2.0, 30.0)]
    assert line(sketch, "priced-1") == [(4.0, 10.0)]
    assert line(sketch, "front") == [(1.0, 20.0), (4.0, 10.0), (4.0, 10.0)]
    assert sketch.alt == (
        "3 recipes. The cheapest is t0: 1 and 20 s; the quickest t2: 4 and 10 s. 2 on the front."
    )


def test_nothing_is_drawn_where_cost_is_time_or_not_known() -> None:
    alone = (row("t0", 1.0, 20.0), row("t1", 2.0, 30.0))
    unknown = (row("t0", 1.0, 20.0), row("t2", None, 10.0, "2 x H200"))
    for rows in ((), alone, unknown):
        assert COST.draw(replace(make_part(make_trial("t0")), priced=rows), LIGHT) is None
