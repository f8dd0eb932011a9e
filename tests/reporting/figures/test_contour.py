import numpy as np
import pytest
from helpers.reporting.figures import make_part, make_trial, points, random_part, sketched

from tune_speed.core.records import Status
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.canvas import LIGHT
from tune_speed.reporting.figures.slices import CELLS, CONTOUR, chosen, ground
from tune_speed.reporting.study.view import StudyPart


@pytest.fixture(autouse=True)
def _no_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "importance", lambda records: ())
    monkeypatch.setattr(facts, "_LATEST", [])


def slope(count: int = 60) -> StudyPart:
    """Returns a part whose trials are the faster, the smaller `a` is, whatever `b` is."""
    draws = np.random.default_rng(0)
    places = draws.random((count, 2))
    trials = [
        make_trial(f"t{i}", time_s=1 + float(a), params={"a": float(a), "b": float(b), "c": "x"})
        for i, (a, b) in enumerate(places)
    ]
    return make_part(*trials)


def test_ground_is_better_near_better_trials() -> None:
    found = ground(np.array([[0.1, 0.5], [0.9, 0.5]]), np.array([1.0, 0.0]))
    row = found[:, CELLS // 2]
    assert row[1] > 0.9 and row[-2] < 0.1


def test_ground_is_unknown_far_from_any_trial() -> None:
    found = ground(np.array([[0.0, 0.0]]), np.array([1.0]))
    assert np.isfinite(found[0, 0]) and np.isnan(found[-1, -1])
    assert 0 < np.isfinite(found).sum() < 0.05 * CELLS**2


def test_points_stand_at_their_values() -> None:
    part = random_part(40)
    sketch = CONTOUR.draw(part, LIGHT)
    columns, trials = chosen(part)
    assert sketch is not None
    places = points(sketch)
    for trial in trials:
        values = [trial.record.params[column.name] for column in columns]
        assert places[trial.record.trial_id] == pytest.approx(values)


def test_cells_of_the_best_trials_have_the_most_colour() -> None:
    sketch = sketched(CONTOUR, slope())
    (mesh, *_) = sketch.canvas.panel.collections
    found = np.nanmean(np.ma.filled(mesh.get_array().reshape(CELLS, CELLS), np.nan), axis=0)
    assert found[:5].min() > 0.6 and found[-5:].max() < 0.4
    shades = mesh.get_cmap()(np.linspace(0.05, 0.95, 10))[:, 3]
    assert shades[0] < 0.1 and shades[-1] > 0.5 and (np.diff(shades) >= 0).all()


def test_numbers_that_never_meet_are_not_a_pair() -> None:
    names = ["optimizer.sgd.lr", "optimizer.adamw.lr", "epochs"]
    trials = [
        make_trial(f"t{i}", time_s=1.0 + i, params={names[i % 2]: 0.1 * i, "epochs": i})
        for i in range(12)
    ]
    columns, having = chosen(make_part(*trials))
    assert {column.name for column in columns} == {names[0], "epochs"}
    assert len(having) == 6


def test_misses_count_as_worse_than_any_hit() -> None:
    hits = [make_trial(f"t{i}", params={"a": i / 50, "b": i % 5}) for i in range(25)]
    misses = [
        make_trial(f"m{i}", Status.MISSED, accuracy=0.5, params={"a": 0.5 + i / 50, "b": i % 5})
        for i in range(25)
    ]
    sketch = sketched(CONTOUR, make_part(*hits, *misses))
    (mesh, *_) = sketch.canvas.panel.collections
    found = np.ma.filled(mesh.get_array().reshape(CELLS, CELLS), np.nan)
    assert np.nanmin(found[:, : CELLS // 2 - 1]) > 0.5 > np.nanmax(found[:, CELLS // 2 + 1 :])


def test_nothing_is_drawn_without_two_numbers_or_with_few_trials() -> None:
    lone = [
        make_trial(f"t{i}", time_s=1.0 + i, params={"a": i, "c": "xy"[i % 2]}) for i in range(9)
    ]
    assert CONTOUR.draw(make_part(*lone), LIGHT) is None
    assert CONTOUR.draw(slope(4), LIGHT) is None


def test_ranges_come_before_a_few_sizes() -> None:
    trials = [
        make_trial(
            f"t{i}", time_s=1.0 + i, params={"size": 2 ** (i % 3), "a": 0.1 * i, "b": 1.0 / (i + 1)}
        )
        for i in range(12)
    ]
    columns, _ = chosen(make_part(*trials))
    assert {column.name for column in columns} == {"a", "b"}
