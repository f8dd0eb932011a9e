import math
from dataclasses import replace

import pytest
from helpers.reporting.figures import certified_trial, make_part, make_trial, points, sketched

from tune_speed.core.records import Status
from tune_speed.reporting.figures.canvas import LIGHT
from tune_speed.reporting.figures.certified_times import CERTIFIED_TIMES, pairs


def test_pairs_hold_estimate_median_interval_and_hits() -> None:
    times = [2.0, 1.0, 3.0, None, 1.5]
    part = make_part(make_trial("t0", time_s=1.1), certified=[certified_trial("t0", times)])
    (pair,) = pairs(part)
    assert (pair.estimate_s, pair.median_s) == pytest.approx((1.1, 2.0))
    assert (pair.low_s, pair.high_s) == (1.0, math.inf)
    assert (pair.hits, pair.n) == (4, 5)


def test_certificate_knows_its_estimate_where_trial_ids_recur() -> None:
    old, new = make_trial("t0", time_s=9.0), make_trial("t0", time_s=1.0)
    part = make_part(old, new, certified=[certified_trial("t0", [2.0, 2.0])])
    first = replace(part.trials[0], run_id="first")
    certificate = {"provenance": {"trial_run_id": "first"}}
    record = part.certified[0].record.model_copy(update={"certificate": certificate})
    certified = replace(part.certified[0], record=record)
    whole = replace(part, trials=(first, part.trials[1]), certified=(certified,))
    assert [pair.estimate_s for pair in pairs(whole)] == [9.0]
    assert [pair.estimate_s for pair in pairs(part)] == [1.0]


def test_points_are_the_medians_in_rows_the_best_first() -> None:
    part = make_part(
        make_trial("t0", time_s=1.0),
        make_trial("t1", time_s=2.0),
        certified=[certified_trial("t0", [5.0] * 6), certified_trial("t1", [3.0] * 6)],
    )
    sketch = sketched(CERTIFIED_TIMES, part)
    drawn = [
        (sketch.canvas.marks[int(url.removeprefix("mark:"))].trial_id, float(x), float(y))
        for group in sketch.canvas.panel.collections
        for url, (x, y) in zip(group.get_urls(), group.get_offsets(), strict=False)
        if url
    ]
    assert drawn == [("t1", 3.0, 0.0), ("t1", 2.0, 0.0), ("t0", 5.0, 1.0), ("t0", 1.0, 1.0)]


def test_times_without_an_end_stand_at_the_right_edge() -> None:
    part = make_part(
        make_trial("t0", time_s=1.0), certified=[certified_trial("t0", [2.0, None, None])]
    )
    sketch = sketched(CERTIFIED_TIMES, part)
    intervals = [c for c in sketch.canvas.panel.collections if c.get_gid() == "interval"]
    right = sketch.canvas.panel.get_xlim()[1]
    assert intervals[0].get_paths()[0].vertices[:, 0] == pytest.approx([2.0, right])
    assert "t0 was estimated as 1 s and has no median, 1 of 3 runs hit" in sketch.alt
    assert points(sketch)["t0"]


def test_certified_trial_whose_estimate_missed_is_shown_all_the_same() -> None:
    part = make_part(make_trial("t0", Status.MISSED), certified=[certified_trial("t0", [2.0, 3.0])])
    sketch = sketched(CERTIFIED_TIMES, part)
    assert "estimated as a miss" in sketch.alt


def test_nothing_is_drawn_without_a_certificate_or_a_hit() -> None:
    assert CERTIFIED_TIMES.draw(make_part(make_trial("t0")), LIGHT) is None
    missed = make_part(
        make_trial("t0", Status.MISSED), certified=[certified_trial("t0", [None, None])]
    )
    assert CERTIFIED_TIMES.draw(missed, LIGHT) is None
