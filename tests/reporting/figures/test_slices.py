from collections.abc import Sequence

import pytest
from helpers.reporting.figures import make_part, make_trial, points, random_part, sketched

from tune_speed.core.records import Status
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.canvas import LIGHT
from tune_speed.reporting.figures.slices import MOST, MOST_OTHERS, SLICES, slices
from tune_speed.reporting.study.view import ViewedTrial


@pytest.fixture(autouse=True)
def _no_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "importance", lambda records: ())
    monkeypatch.setattr(facts, "_LATEST", [])


def trials(values: Sequence[object], *, name: str = "p") -> list[ViewedTrial]:
    return [
        make_trial(f"t{i}", time_s=1.0 + i, params={name: value}) for i, value in enumerate(values)
    ]


def test_points_stand_at_value_and_time_and_misses_at_the_top() -> None:
    part = random_part(40)
    sketch = sketched(SLICES, part)
    names = [each.name for each in slices(part)]
    panel = names.index("epochs")
    found, top = points(sketch, panel=panel), sketch.canvas.panels[panel].get_ylim()[1]
    for trial in part.trials:
        x, y = found[trial.record.trial_id]
        time_s = trial.record.time_to_target_s
        assert x == pytest.approx(trial.record.params["epochs"])
        assert y == pytest.approx(top if time_s is None else time_s)


def test_trials_without_a_parameter_are_left_out_of_its_panel() -> None:
    part = random_part(40)
    found = {each.name: each for each in slices(part)}
    having = [t for t in part.trials if "optimizer.sgd.lr" in t.record.params]
    assert 0 < len(found["optimizer.sgd.lr"].trials) == len(having) < len(part.trials)


def test_axis_is_logarithmic_where_values_span_a_decade() -> None:
    wide = SLICES.draw(make_part(*trials([10.0**-i for i in range(8)])), LIGHT)
    near = SLICES.draw(make_part(*trials([1.0 + i / 10 for i in range(8)])), LIGHT)
    assert wide is not None and near is not None
    assert (wide.canvas.panel.get_xscale(), near.canvas.panel.get_xscale()) == ("log", "linear")


def test_few_values_become_columns_in_their_order() -> None:
    sketch = sketched(SLICES, make_part(*trials([128, 32, 64, 64, 32, 128, 32])))
    labels = [label.get_text() for label in sketch.canvas.panel.get_xticklabels()]
    assert labels == ["32", "64", "128"]
    places = [round(x) for x, _ in points(sketch).values()]
    assert sorted(places) == [0, 0, 0, 1, 1, 2, 2]


def test_rare_choices_share_a_column() -> None:
    many = ["a", "b", "c", "d", "e", "f"] * 3 + ["x", "y", "z"]
    sketch = sketched(SLICES, make_part(*trials(list(many))))
    labels = [label.get_text() for label in sketch.canvas.panel.get_xticklabels()]
    assert len(labels) == 7
    assert sum(round(x) == 6 for x, _ in points(sketch).values()) == 3


def test_what_never_varied_has_no_panel_and_of_choices_six_are_enough() -> None:
    def params(n: int) -> dict[str, object]:
        return {"fixed": 1} | {f"c{i}": "ab"[n % 2] for i in range(9)}

    varied = [make_trial(f"t{n}", time_s=1.0, params=params(n)) for n in range(9)]
    found = slices(make_part(*varied))
    assert len(found) == MOST
    assert "fixed" not in {each.name for each in found}


def test_every_number_has_a_panel_and_the_epochs_before_all_that_may_be_left_out() -> None:
    def params(n: int, count: int) -> dict[str, object]:
        return {f"c{i}": "ab"[n % 2] for i in range(6)} | {f"p{i}": n for i in range(count)}

    def names(count: int) -> list[str]:
        trials = [
            make_trial(f"t{n}", time_s=1.0, params=params(n, count) | {"epochs": n})
            for n in range(9)
        ]
        return [each.name for each in slices(make_part(*trials))]

    assert set(names(9)) == {*params(0, 9), "epochs"}
    many = names(40)
    assert len(many) == MOST + MOST_OTHERS and "epochs" in many


def test_many_panels_share_the_points_that_a_page_can_bear() -> None:
    params = [{f"p{i}": n for i in range(12)} for n in range(1500)]
    trials = [make_trial(f"t{n}", time_s=1.0 + n, params=each) for n, each in enumerate(params)]
    sketch = sketched(SLICES, make_part(*trials))
    assert sketch.canvas.every == 3
    assert len(sketch.canvas.marks) <= 12 * 502


def test_nothing_is_drawn_without_a_hit_or_with_few_trials() -> None:
    missed = [make_trial(f"t{i}", Status.MISSED, params={"p": i}) for i in range(9)]
    assert SLICES.draw(make_part(*missed), LIGHT) is None
    assert SLICES.draw(make_part(*trials([1, 2])), LIGHT) is None
