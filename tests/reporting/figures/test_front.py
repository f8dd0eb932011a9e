import pytest
from helpers.reporting.figures import line, make_part, make_trial, points, random_part, sketched

from tune_speed.core.records import Status
from tune_speed.core.targets import Target
from tune_speed.reporting.figures.canvas import LIGHT, LOOKS
from tune_speed.reporting.figures.facts import ends_of
from tune_speed.reporting.figures.front import FRONT, pareto

AT_LEAST = Target(value=0.9)


@pytest.mark.parametrize("seed", range(5))
def test_front_is_the_pareto_set(seed: int) -> None:
    ends = ends_of(random_part(80, seed=seed))
    pairs = [(end.train_s, end.metric) for end in ends]
    undominated = [
        (s, m)
        for s, m in pairs
        if not any(s2 <= s and m2 >= m and (s2, m2) != (s, m) for s2, m2 in pairs)
    ]
    assert [(end.train_s, end.metric) for end in pareto(ends, AT_LEAST)] == sorted(undominated)


def test_line_goes_through_the_front_of_what_was_not_stopped() -> None:
    part = random_part(50, seed=2)
    sketch = sketched(FRONT, part)
    whole = [end for end in ends_of(part) if end.trial.record.status != Status.CAPPED]
    front = [(end.train_s, end.metric) for end in pareto(whole, AT_LEAST)]
    assert line(sketch, "front")[:-1] == front


def test_a_stopped_trial_is_a_point_and_never_on_the_front() -> None:
    stopped = make_trial("t1", Status.CAPPED, time_s=1.0, accuracy=0.99)
    sketch = FRONT.draw(make_part(make_trial("t0", time_s=2.0), stopped), LIGHT)
    assert sketch is not None and points(sketch)["t1"] == (1.0, 0.99)
    assert line(sketch, "front")[0] == (2.0, 0.95) and "1 trial on the front" in sketch.alt
    alone = FRONT.draw(make_part(stopped), LIGHT)
    assert alone is not None and line(alone, "front") == []


def test_each_evaluated_trial_has_a_point_of_its_status() -> None:
    part = random_part(30)
    sketch = sketched(FRONT, part)
    expected = {
        t.record.trial_id: (final.train_s, final.accuracy)
        for t in part.trials
        if (final := t.record.runs[-1].final) is not None
    }
    assert points(sketch) == expected
    groups = [c for c in sketch.canvas.panel.collections if c.get_urls()[0]]
    assert len(groups) == len({t.record.status for t in part.trials})


def test_only_hits_are_filled() -> None:
    filled = [status for status, look in LOOKS.items() if look.is_filled]
    assert filled == [Status.REACHED]


def test_trials_without_an_evaluation_are_left_out() -> None:
    part = make_part(
        make_trial("t0"),
        make_trial("t1", Status.OOM, evaluations=()),
        make_trial("t2", Status.FAILED, evaluations=()),
    )
    sketch = sketched(FRONT, part)
    assert set(points(sketch)) == {"t0"}


def test_alt_tells_the_target_the_best_and_the_leader() -> None:
    part = make_part(
        make_trial("t0", time_s=2.0, accuracy=0.91),
        make_trial("t1", time_s=20.0, accuracy=0.98),
        make_trial("t2", Status.MISSED, time_s=1.0, accuracy=0.4),
    )
    sketch = sketched(FRONT, part)
    assert sketch.alt == (
        "2 of 3 evaluated trials met the target accuracy 0.9. The highest accuracy, 0.98, is that"
        " of t1 after 20 s of training; t0 took 2 s to 0.91. 3 trials on the front."
    )
