import pytest
from helpers.making import make_evaluation
from helpers.reporting.figures import (
    certified_trial,
    line,
    make_part,
    make_trial,
    points,
    sketched,
    viewed,
)

from tune_speed.core.records import Status
from tune_speed.reporting.figures.canvas import LIGHT
from tune_speed.reporting.figures.curves import CURVES, MOST, MOST_WITH_MISSES, finalists


def test_leader_comes_first_and_is_drawn_last_and_thickest() -> None:
    part = make_part(
        *(make_trial(f"t{i}", time_s=5.0 - i, curve=(0.1, 0.5, 0.95)) for i in range(4))
    )
    assert [f.trial.record.trial_id for f in finalists(part)] == ["t3", "t2", "t1", "t0"]
    sketch = sketched(CURVES, part)
    drawn = [each for each in sketch.canvas.panel.get_lines() if each.get_gid() == "finalist"]
    assert drawn[-1].get_linewidth() == max(each.get_linewidth() for each in drawn)
    assert drawn[-1].get_color() == LIGHT["s1"]
    assert list(drawn[-1].get_xdata()) == pytest.approx([0.0, 1.0, 2.0])


def test_line_is_the_records_curve() -> None:
    sketch = sketched(CURVES, make_part(make_trial(time_s=4.0, curve=(0.1, 0.6, 0.92))))
    assert line(sketch, "finalist") == [(0.0, 0.1), (2.0, 0.6), (4.0, 0.92)]


def test_crossing_is_marked_where_the_target_held() -> None:
    hit = make_trial("t0", time_s=4.0, curve=(0.1, 0.6, 0.92))
    miss = make_trial("t1", Status.MISSED, time_s=3.0, curve=(0.1, 0.3, 0.5))
    sketch = sketched(CURVES, make_part(hit, miss))
    assert points(sketch) == {"t0": pytest.approx((4.0, 0.92))}


def test_certified_runs_are_thin_lines_of_the_same_colour() -> None:
    curve = (make_evaluation(step=0, train_s=0.0, accuracy=0.1), make_evaluation(train_s=1.2))
    record = certified_trial("t0000", [1.2, 1.3, None]).record
    runs = tuple(run.model_copy(update={"evaluations": curve}) for run in record.runs)
    certified = viewed(record.model_copy(update={"runs": runs}), has_curve=True)
    sketch = sketched(CURVES, make_part(make_trial(curve=(0.1, 0.95)), certified=[certified]))
    lines = sketch.canvas.panel.get_lines()
    seeds = [each for each in lines if each.get_gid() == "seed"]
    (own,) = [each for each in lines if each.get_gid() == "finalist"]
    assert len(seeds) == 3
    assert {each.get_color() for each in seeds} == {own.get_color()}
    assert "3 curves of other seeds" in sketch.alt


def test_misses_fill_up_only_where_hits_are_few() -> None:
    hits = [make_trial(f"h{i}", time_s=1.0 + i, curve=(0.1, 0.95)) for i in range(12)]
    misses = [make_trial(f"m{i}", Status.MISSED, curve=(0.1, 0.5)) for i in range(9)]
    assert len(finalists(make_part(*hits, *misses))) == MOST
    few = finalists(make_part(*misses, hits[0]))
    assert len(few) == MOST_WITH_MISSES
    assert few[0].trial.record.trial_id == "h0"


def test_trials_without_curves_are_not_drawn() -> None:
    assert CURVES.draw(make_part(make_trial("t0")), LIGHT) is None


def test_all_missed_says_who_came_nearest() -> None:
    trials = [make_trial(f"t{i}", Status.MISSED, curve=(0.1, 0.5 + 0.1 * i)) for i in range(3)]
    sketch = sketched(CURVES, make_part(*trials))
    assert sketch.alt.startswith("None met the target accuracy 0.9; t2 came nearest, with 0.7.")
