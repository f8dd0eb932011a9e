import itertools
import random
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from helpers.reporting.figures import (
    certified_trial,
    make_part,
    make_trial,
    random_part,
    svg,
    viewed,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tune_speed.core.errors import StorageError
from tune_speed.core.records import Status
from tune_speed.reporting.figures import FIGURES, Drawn, canvas, draw_png, draw_svg, facts
from tune_speed.reporting.figures.canvas import DARK, LIGHT, SENTINELS
from tune_speed.reporting.importance import Importance, importance
from tune_speed.reporting.leaderboard.ranking import make_row
from tune_speed.reporting.study.view import StudyPart


@cache
def some_answers() -> tuple[Importance, ...]:
    return importance([trial.record for trial in random_part(40).trials])


@pytest.fixture(autouse=True)
def _ask_forests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What matters is how answers are drawn; the forests behind them take seconds."""
    monkeypatch.setattr(facts, "_LATEST", [])
    monkeypatch.setattr(
        facts, "importance", lambda records: some_answers() if len(records) > 9 else ()
    )


EVERY = pytest.mark.parametrize("name", FIGURES)
SVG = "{http://www.w3.org/2000/svg}"


@cache
def whole_part() -> StudyPart:
    trials = random_part(40).trials
    hit = next(trial for trial in trials if trial.record.time_to_target_s is not None)
    certified = certified_trial(hit.record.trial_id, [1.0, 2.0, 3.0])
    return with_costs(make_part(*trials, certified=[certified]))


def with_costs(part: StudyPart) -> StudyPart:
    met = [each for each in part.trials if each.record.time_to_target_s is not None]
    rows = [make_row(each.record, run_id=None, search=None) for each in met]
    costs = [
        {"expected_cost": 1.0 + n, "devices": f"{'2 x ' if n % 2 else ''}{MARKUP[0]}"}
        for n in range(len(rows))
    ]
    every = zip(rows, costs, strict=True)
    return replace(part, priced=tuple(row.model_copy(update=cost) for row, cost in every))


@pytest.fixture
def part() -> StudyPart:
    return whole_part()


@cache
def drawing_of_whole(name: str) -> Drawn:
    drawn = draw_svg(name, whole_part(), id_prefix="p1-x")
    assert drawn is not None
    return drawn


@pytest.fixture
def drawn(name: str) -> Drawn:
    return drawing_of_whole(name)


@EVERY
def test_svg_is_one_element_for_a_page_in_its_theme(drawn: Drawn) -> None:
    root = ET.fromstring(drawn.svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("width") == "100%"
    assert root.get("height") is None
    width = 760 if drawn.is_wide else 360
    assert drawn.is_wide == (drawn.name in ("parallel", "slices"))
    assert root.get("viewBox", "").startswith(f"0 0 {width} ")
    assert root.get("aria-label") == drawn.alt
    used = set(re.findall(r"var\(--(\w+)\)", drawn.svg))
    assert {"ink"} <= used <= set(LIGHT) == set(DARK)
    assert not [c for c in SENTINELS.values() if c in drawn.svg]
    assert not re.findall(r"#[0-9a-f]{6}\b", drawn.svg)
    assert "font-family" not in drawn.svg


@EVERY
def test_svg_has_nothing_that_runs_or_loads(drawn: Drawn) -> None:
    assert "<!" not in drawn.svg and "<?" not in drawn.svg
    tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(drawn.svg).iter()}
    assert tags <= {"svg", "g", "path", "text", "use", "defs", "clipPath", "rect", "a", "title"}
    links = [e.attrib["href"] for e in ET.fromstring(drawn.svg).iter() if "href" in e.attrib]
    assert all(link.startswith("#") for link in links)


@EVERY
def test_ids_are_prefixed_and_references_lead_somewhere(drawn: Drawn) -> None:
    ids = re.findall(r' id="([^"]*)"', drawn.svg)
    assert len(ids) == len(set(ids))
    assert all(each.startswith("p1-x-") for each in ids)
    inner = re.findall(r'(?:url\(#|href="#)(?!trial-)([^")]*)', drawn.svg)
    assert set(inner) <= set(ids)


@EVERY
def test_same_part_gives_the_same_bytes(name: str, part: StudyPart, drawn: Drawn) -> None:
    random.seed(2)
    assert draw_svg(name, part, id_prefix="p1-x") == drawn


@EVERY
def test_points_link_to_their_rows_and_the_keyboard_stops_once(
    drawn: Drawn, part: StudyPart
) -> None:
    links = list(ET.fromstring(drawn.svg).iter(f"{SVG}a"))
    ids = {trial.record.trial_id for trial in part.trials}
    assert all(link.attrib["href"].removeprefix("#trial-") in ids for link in links)
    assert all(link.findtext(f"{SVG}title") for link in links)
    stops = {link.attrib["href"] for link in links if "tabindex" not in link.attrib}
    assert part.leader is not None
    assert stops <= {f"#trial-{part.leader.record.trial_id}"}


def test_points_lead_to_the_rows_that_the_page_names(part: StudyPart) -> None:
    first, second, *_ = part.trials
    anchors = {first.run_id: "row one", second.run_id: "row-2"}
    drawn = draw_svg("front", part, id_prefix="a", anchors=anchors)
    assert drawn is not None
    links = [link.attrib["href"] for link in ET.fromstring(drawn.svg).iter(f"{SVG}a")]
    assert sorted(links) == ["#row%20one", "#row-2"]
    titles = list(ET.fromstring(drawn.svg).iter(f"{SVG}title"))
    assert len(titles) == len(part.trials)


@EVERY
def test_empty_part_draws_nothing(name: str, tmp_path: Path) -> None:
    assert draw_svg(name, make_part(), id_prefix="a") is None
    assert not draw_png(name, make_part(), tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


@EVERY
def test_one_trial_is_drawn_or_left_out_without_a_word(name: str) -> None:
    for status in Status:
        lone = make_part(make_trial(status=status, runs=()))
        draw_svg(name, lone, id_prefix="a")
    bare = make_trial(status=Status.FAILED, evaluations=(), step_time_ms=None)
    draw_svg(name, make_part(bare), id_prefix="a")


def test_all_missed_study_keeps_what_does_not_need_a_hit() -> None:
    trials = [
        make_trial(f"t{i}", Status.MISSED, accuracy=0.5, curve=(0.1, 0.5), batch_size=2**i)
        for i in range(9)
    ]
    drawn = {name for name in FIGURES if draw_svg(name, make_part(*trials), id_prefix="a")}
    assert drawn >= {"curves", "front", "step_time", "stopped"}
    assert drawn.isdisjoint({"best_so_far", "slices", "certified_vs_estimated"})


@settings(max_examples=3)
@given(texts=st.lists(st.text(max_size=30), min_size=6, max_size=6))
def test_any_name_gives_well_formed_xml(texts: list[str]) -> None:
    name = texts[0]
    trials = [
        make_trial(
            f"{text}{i}",
            time_s=1.0 + i,
            params={name: i, f"{name}.b": text + "ab"[i % 2], f"{name}.c": -i},
        )
        for i, text in enumerate(texts)
    ]
    part = make_part(*trials, certified=[certified_trial(f"{name}0", [1.0, None, 2.0])])
    for figure in (
        "best_so_far",
        "front",
        "parallel",
        "slices",
        "contour",
        "certified_vs_estimated",
    ):
        drawn = draw_svg(figure, part, id_prefix="a")
        assert drawn is not None
        ET.fromstring(drawn.svg)


MARKUP = ("<script>alert(1)</script>", '"onload="alert(1)', "😀_&amp;]]>")
FORMULA = "$x_$ \\frac{1}{0}"


@cache
def odd_part() -> StudyPart:
    names = itertools.cycle((*MARKUP, FORMULA))
    trials = []
    for trial, name in zip(random_part(12).trials, names, strict=False):
        changes = {"study": FORMULA, "trial_id": f"{name}{trial.record.trial_id}"}
        trials.append(viewed(trial.record.model_copy(update=changes), has_curve=True))
    hits = [trial for trial in trials if trial.record.time_to_target_s is not None]
    certified = [certified_trial(hit.record.trial_id, [1.0, 2.0, 3.0]) for hit in hits]
    return with_costs(make_part(*trials, certified=certified))


@EVERY
def test_names_of_users_stay_names(name: str) -> None:
    drawn = svg(name, odd_part())
    root = ET.fromstring(drawn.svg)
    assert not [e for e in root.iter() if any(key.startswith("on") for key in e.attrib)]
    assert not [e for e in root.iter() if e.tag.endswith("script")]


def test_every_odd_name_is_in_a_figure() -> None:
    """Otherwise that names stay names would say little."""
    drawn = svg("front", odd_part())
    titles = [title.text or "" for title in ET.fromstring(drawn.svg).iter(f"{SVG}title")]
    assert all(any(name in title for title in titles) for name in (*MARKUP, FORMULA))


@EVERY
def test_png_has_odd_names_and_is_a_slide(name: str, tmp_path: Path) -> None:
    assert draw_png(name, odd_part(), tmp_path / "new" / "a.png")
    with Image.open(tmp_path / "new" / "a.png") as picture:
        assert picture.size == (1920, 1080)
        assert picture.convert("RGB").getpixel((0, picture.height - 1)) == (255, 255, 255)


def test_png_that_cannot_be_written_says_so(part: StudyPart, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        draw_png("front", part, tmp_path / "file" / "a.png")


def test_settings_of_the_user_do_not_change_a_figure(part: StudyPart) -> None:
    import matplotlib

    first = draw_svg("front", part, id_prefix="a")
    with matplotlib.rc_context({"font.size": 30, "text.parse_math": True, "axes.grid": False}):
        assert draw_svg("front", part, id_prefix="a") == first
        assert matplotlib.rcParams["font.size"] == 30


@pytest.mark.parametrize("name", ["best_so_far", "front", "slices", "parallel"])
def test_of_very_many_points_every_so_manyth_is_drawn(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = random_part(200)
    whole = draw_svg(name, part, id_prefix="a")
    monkeypatch.setattr(canvas, "MOST_POINTS", 25)
    thin = draw_svg(name, part, id_prefix="a")
    assert whole is not None and thin is not None and "one in" not in whole.about
    (every,) = re.findall(r"one in (\d+) is drawn", thin.about)
    drawn = [each.svg.count("<title>") for each in (whole, thin)]
    assert int(every) > 1 and drawn[0] / int(every) <= drawn[1] <= 0.5 * drawn[0]
    assert part.leader is not None and f">{part.leader.record.trial_id} · " in thin.svg
    assert thin.alt == whole.alt
