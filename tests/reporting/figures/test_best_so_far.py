import itertools

import pytest
from helpers.reporting.figures import line, make_part, make_trial, points, random_part, sketched

from tune_speed.core.records import Status
from tune_speed.reporting.figures import FIGURES
from tune_speed.reporting.figures.best_so_far import BEST_SO_FAR, moments, records
from tune_speed.reporting.figures.canvas import LIGHT


def test_line_is_the_running_minimum() -> None:
    part = random_part(60, seed=3)
    sketch = sketched(BEST_SO_FAR, part)
    ended = sorted(part.trials, key=lambda trial: trial.record.finished_at)
    hits = [t.record.time_to_target_s for t in ended if t.record.time_to_target_s is not None]
    running = sorted(set(itertools.accumulate(hits, min)), reverse=True)
    steps = line(sketch, "best")
    assert [y for _, y in steps] == pytest.approx([*running, running[-1]])
    assert [x for x, _ in steps] == sorted(x for x, _ in steps)
    assert steps[-1][0] == pytest.approx(moments(part)[-1].clock_s)


def test_clock_stands_between_sessions() -> None:
    part = make_part(
        make_trial("t0", time_s=5.0, took_s=10.0),
        make_trial("t1", time_s=4.0, started_s=86400.0, took_s=20.0),
    )
    assert [moment.clock_s for moment in moments(part)] == pytest.approx([10.0, 30.0])
    sketch = sketched(BEST_SO_FAR, part)
    assert "after 30 s" in sketch.alt


def test_every_trial_has_a_point_and_misses_stand_at_the_foot() -> None:
    part = random_part(30, seed=5)
    sketch = sketched(BEST_SO_FAR, part)
    found = points(sketch)
    assert set(found) == {trial.record.trial_id for trial in part.trials}
    times = {t.record.trial_id: t.record.time_to_target_s for t in part.trials}
    fastest = min(time_s for time_s in times.values() if time_s is not None)
    for trial_id, (_, y) in found.items():
        time_s = times[trial_id]
        assert y < fastest if time_s is None else y == pytest.approx(time_s)


def test_all_points_are_within_the_panel() -> None:
    sketch = sketched(BEST_SO_FAR, random_part(60, seed=3))
    (left, right), (low, high) = sketch.canvas.panel.get_xlim(), sketch.canvas.panel.get_ylim()
    assert all(left <= x <= right and low <= y <= high for x, y in points(sketch).values())


def test_first_hit_is_told() -> None:
    part = make_part(
        make_trial("t0", Status.MISSED, took_s=10.0),
        make_trial("t1", time_s=4.0, started_s=10.0, took_s=5.0),
    )
    sketch = sketched(BEST_SO_FAR, part)
    assert "1 of 2 trials met the target, the first of them (t1, 4 s) after 15 s" in sketch.alt
    texts = [text.get_text() for text in sketch.canvas.panel.texts]
    assert "first hit after 15 s" in texts


def test_times_over_more_than_a_decade_are_logarithmic() -> None:
    wide = make_part(make_trial("t0", time_s=50.0), make_trial("t1", time_s=4.0, started_s=2.0))
    near = make_part(make_trial("t0", time_s=5.0), make_trial("t1", time_s=4.0, started_s=2.0))
    scales = [
        sketch.canvas.panel.get_yscale()
        for part in (wide, near)
        if (sketch := BEST_SO_FAR.draw(part, LIGHT)) is not None
    ]
    assert scales == ["log", "linear"]


def test_records_are_strictly_falling() -> None:
    part = make_part(*(make_trial(f"t{i}", time_s=3.0, started_s=float(i)) for i in range(4)))
    assert [moment.trial.record.trial_id for moment in records(moments(part))] == ["t0"]


def test_nothing_is_drawn_where_nothing_met_the_target() -> None:
    assert BEST_SO_FAR.draw(make_part(make_trial(status=Status.MISSED)), LIGHT) is None


def test_line_rises_with_the_metric_where_the_best_within_a_time_is_sought() -> None:
    ends = (0.7, 0.9, 0.8, 0.95)
    trials = (
        make_trial(f"t{i}", accuracy=end, time_s=5.0 - i, started_s=float(i))
        for i, end in enumerate(ends)
    )
    part = make_part(*trials, target=0.1, within_s=6.0)
    sketch = sketched(BEST_SO_FAR, part)
    assert [y for _, y in line(sketch, "best")] == pytest.approx([0.7, 0.9, 0.95, 0.95])
    assert "4 of 4 trials ended in time" in sketch.alt
    assert "the best accuracy rose to 0.95 (t3)" in sketch.alt
    assert part.leader is not None and part.leader.record.trial_id == "t3"


@pytest.mark.parametrize("name", list(FIGURES))
def test_no_figure_speaks_of_a_target_where_there_is_none(name: str) -> None:
    trials = (
        make_trial(
            f"t{i}",
            accuracy=0.7 + 0.02 * i,
            curve=[0.1, 0.5, 0.7 + 0.02 * i],
            started_s=float(i),
            params={"lr": 0.1 * (i + 1), "epochs": i},
        )
        for i in range(12)
    )
    sketch = FIGURES[name].draw(make_part(*trials, target=0.1, within_s=6.0), LIGHT)
    if sketch is None:
        return
    texts = [t.get_text() for panel in sketch.canvas.panels for t in panel.texts]
    assert "met the target" not in sketch.alt and not any("0.1 s" in text for text in texts)
