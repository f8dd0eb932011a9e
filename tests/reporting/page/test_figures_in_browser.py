from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from helpers.reporting.browser import DESKTOP, PHONE, Visit
from helpers.reporting.pages import varied

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow

BOXES = """[...document.querySelectorAll("figure.card")].map(figure => {
    const {x, y, width, height} = figure.getBoundingClientRect();
    return {x, y, width, height, title: figure.querySelector("h3").textContent};
})"""
SMALLEST = """[...document.querySelectorAll("figure svg text")].map(text => {
    const svg = text.closest("svg");
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return scale * parseFloat(getComputedStyle(text).fontSize);
}).reduce((a, b) => Math.min(a, b))"""


def test_answer_and_two_figures_fill_the_first_screen(page: "Page") -> None:
    boxes = page.evaluate(BOXES)
    assert [box["title"] for box in boxes[:2]] == ["Best so far", "Training time and result"]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
    svg = page.locator("figure svg").nth(1).bounding_box()
    assert svg is not None and svg["y"] + svg["height"] <= DESKTOP["height"]


def test_figures_of_a_desktop_are_wide_and_their_text_is_large(page: "Page") -> None:
    widths = [svg.bounding_box() for svg in page.locator("figure svg").all()]
    assert min(box["width"] for box in widths if box is not None) >= 560
    assert page.evaluate(SMALLEST) >= 13


def test_figures_leave_no_hole_between_them(page: "Page") -> None:
    boxes = page.evaluate(BOXES)
    columns: dict[float, list[dict[str, float]]] = {}
    for box in boxes:
        columns.setdefault(round(box["x"]), []).append(box)
    assert len(columns) == 2
    more = [box for box in boxes[2:] if box["width"] < 700]
    for column in columns.values():
        own = sorted((box for box in column if box in more), key=lambda box: box["y"])
        gaps = [b["y"] - a["y"] - a["height"] for a, b in pairwise(own)]
        assert all(0 < gap < 20 for gap in gaps)


def test_figures_of_a_phone_stand_below_one_another(
    visit: Callable[..., Visit], address: str
) -> None:
    page = visit(viewport=PHONE).goto(address)
    assert len({box["x"] for box in page.evaluate(BOXES)}) == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_figure_is_enlarged_by_a_click_and_goes_back_to_its_place(page: "Page") -> None:
    figure = page.locator("figure.card").nth(1)
    before = figure.locator("svg").bounding_box()
    figure.locator(".picture").click(position={"x": 3, "y": 3})
    large = page.locator("dialog svg").bounding_box()
    assert before is not None and large is not None
    assert large["height"] > 1.3 * before["height"]
    page.keyboard.press("Escape")
    assert figure.locator("svg").bounding_box() == before
    figure.get_by_role("button", name="Enlarge").click()
    assert page.locator("dialog svg").is_visible()
    page.locator("dialog").get_by_role("button", name="Close").click()
    assert figure.locator("svg").bounding_box() == before


def test_link_in_an_enlarged_figure_leads_to_the_row(page: "Page") -> None:
    page.locator("figure.card").nth(1).get_by_role("button", name="Enlarge").click()
    page.locator("dialog a").last.dispatch_event("click")
    page.locator("dialog").wait_for(state="hidden")
    page.locator("figure svg a").last.dispatch_event("click")
    assert page.locator("tbody:target.open").count() == 1


def parallel(page: "Page") -> "Locator":
    figure = page.locator("figure.parallel")
    figure.locator("svg").scroll_into_view_if_needed()
    return figure


def drag(page: "Page", axis: int, low: float, high: float) -> None:
    script = """([svg, axis]) => {
        const lines = [...svg.querySelectorAll("a > path, .mark > path")].map(
            path => path.getAttribute("d").match(/-?[\\d.]+/g).map(Number));
        const at = axis < 0 ? lines[0].length / 2 + axis : axis;
        const heights = lines.map(line => line[2 * at + 1]);
        const ends = [Math.min(...heights), Math.max(...heights)];
        return ends.map(y => {
            const place = new DOMPoint(lines[0][2 * at], y).matrixTransform(svg.getScreenCTM());
            return [place.x, place.y];
        });
    }"""
    svg = parallel(page).locator("svg").element_handle()
    (x, top), (_, foot) = page.evaluate(script, [svg, axis])
    page.mouse.move(x + 2, top + low * (foot - top) - 1)
    page.mouse.down()
    page.mouse.move(x + 2, top + high * (foot - top) + 1, steps=4)
    page.mouse.up()


def kept(page: "Page") -> set[str]:
    script = """() => [...document.querySelectorAll(".parallel svg a:not(.off)")].map(
        link => link.getAttribute("href"))"""
    return set(page.evaluate(script))


def test_brush_keeps_the_lines_that_cross_it(page: "Page") -> None:
    records = varied()
    assert len(kept(page)) == len(records)
    # Misses cross the last axis, the time's, at its foot.
    drag(page, -1, 0.0, 0.93)
    hits = {f"#trial-{r.trial_id}" for r in records if r.time_to_target_s is not None}
    assert kept(page) == hits
    told = parallel(page).locator("output")
    assert told.text_content() == f"{len(hits)} of {len(records)} lines kept"
    drag(page, axis_names(page).index("optimizer"), 0.0, 0.1)
    sgd = {f"#trial-{r.trial_id}" for r in records if r.params["optimizer"] == "sgd"}
    assert kept(page) == hits & sgd


def axis_names(page: "Page") -> list[str]:
    label = parallel(page).locator("svg").get_attribute("aria-label") or ""
    return label.partition(" across ")[2].rstrip(".").split(", ")


def test_double_click_clears_and_a_click_takes_one_brush_away(page: "Page") -> None:
    drag(page, -1, 0.0, 0.5)
    drag(page, 0, 0.0, 0.5)
    both = kept(page)
    drag(page, 0, 0.2, 0.2)
    assert len(both) < len(kept(page)) < 40
    box = parallel(page).locator("svg").bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + 5, box["y"] + 5)
    assert len(kept(page)) == 40
    assert parallel(page).locator("rect.brush").count() == 0
    assert parallel(page).locator("output").text_content() == ""
