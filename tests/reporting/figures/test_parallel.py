import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from helpers.reporting.figures import make_part, make_trial, random_part, svg

from tune_speed.core.records import Status
from tune_speed.reporting.figures import draw_svg, facts
from tune_speed.reporting.figures.canvas import LIGHT
from tune_speed.reporting.figures.parallel import FOOT, MOST, PARALLEL, Axis, axes_of
from tune_speed.reporting.study.view import StudyPart

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def _no_forests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "importance", lambda records: ())
    monkeypatch.setattr(facts, "_LATEST", [])


def part_of(*params: dict[str, Any]) -> StudyPart:
    trials = [make_trial(f"t{i}", time_s=1.0 + i, params=p) for i, p in enumerate(params)]
    return make_part(*trials)


def axis(values: Sequence[object]) -> Axis:
    found = axes_of(part_of(*({} if v is None else {"p": v} for v in values)))
    return next(each for each in found if each.label == "p")


def test_parameters_come_first_and_results_last() -> None:
    labels = [each.label for each in axes_of(random_part(40))]
    assert labels[-2:] == ["accuracy", "time to target [s]"]
    assert set(labels[:-2]) == {"optimizer", "sgd.lr", "adamw.lr", "epochs", "batch_size"}


def test_lines_cross_numbers_evenly_and_those_of_decades_by_their_logarithm() -> None:
    assert axis([10.0, 20.0, 15.0]).heights == pytest.approx([0.0, 1.0, 0.5])
    assert axis([1e-4, 1e-3, 1e-2, 1e-1, 1.0]).heights == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_categories_have_places_of_their_own_with_their_names() -> None:
    found = axis(["b", "a", "c", "a"])
    assert found.heights == [0.5, 0.0, 1.0, 0.0]
    assert found.ticks() == {0.0: "a", 0.5: "b", 1.0: "c"}


def test_line_of_a_trial_without_the_parameter_crosses_at_the_foot() -> None:
    assert axis([1.0, None, 2.0]).heights == [0.0, FOOT, 1.0]
    drawn = draw_svg("parallel", part_of({"p": 1.0}, {}, {"p": 2.0}), id_prefix="a")
    assert drawn is not None and ">none<" in drawn.svg


def test_few_numbers_are_all_written_and_none_on_another() -> None:
    assert list(axis([32, 64, 128] * 2).ticks().values()) == ["32", "64", "128"]
    ticks = list(axis([1, 2, 3, 1000] * 2).ticks())
    assert all(b - a > 0.06 for a, b in pairwise(ticks))


def test_values_that_are_no_numbers_are_categories_and_never_an_error() -> None:
    for odd in (float("inf"), float("nan"), True, [1, 2]):
        found = axis([1.0, odd, 2.0])
        assert all(0 <= height <= 1 for height in found.heights)


def test_miss_crosses_the_time_at_the_foot() -> None:
    trials = [make_trial(f"t{i}", time_s=1.0 + i, params={"p": i}) for i in range(3)]
    missed = make_trial("t9", Status.MISSED, accuracy=0.5, params={"p": 9})
    assert axes_of(make_part(*trials, missed))[-1].heights == pytest.approx([0, 0.5, 1, FOOT])


def test_what_matters_most_stands_next_to_the_results_and_the_rest_is_left_out() -> None:
    params = [{f"p{i:02d}": n for i in range(14)} for n in range(4)]
    labels = [each.label for each in axes_of(part_of(*params))]
    # Without forests the order is that of the search.
    assert labels[:-1] == [f"p{i:02d}" for i in reversed(range(MOST))]


def test_each_line_has_a_corner_on_each_axis_for_the_brush() -> None:
    part = random_part(40)
    drawn = svg("parallel", part)
    lines = [a.find(f"{SVG}path") for a in ET.fromstring(drawn.svg).iter(f"{SVG}a")]
    corners = [re.findall(r"[ML] ?(\S+) (\S+)", e.attrib["d"]) for e in lines if e is not None]
    assert len(corners) == len(part.trials)
    places = {tuple(x for x, _ in line) for line in corners}
    assert len(places) == 1 and len(places.pop()) == len(axes_of(part))


def test_nothing_is_drawn_where_nothing_varied() -> None:
    assert PARALLEL.draw(part_of({"p": 1}, {"p": 1}), LIGHT) is None
    assert PARALLEL.draw(part_of({"p": 1}), LIGHT) is None
