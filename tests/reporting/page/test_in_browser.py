from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.reporting.browser import DESKTOP, PHONE, Visit, column
from helpers.reporting.pages import page_of, trained

from tune_speed.core.records import Status
from tune_speed.study.file import load_recipe

pytestmark = pytest.mark.slow

EVIL = '"><img src=x onerror=alert(1)><script>alert(1)</script>'


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> str:
    changes: dict[str, Any] = {
        **dict.fromkeys(("study", "device", "workload_name", "proposal_reason"), EVIL),
        "environment": {EVIL: EVIL},
        "params": {EVIL: EVIL, "long" * 60: 1.0},
    }
    records = [trained(EVIL, Status.FAILED, **changes), trained("t0001", **changes)]
    path = tmp_path_factory.mktemp("evil") / "page.html"
    path.write_text(page_of(records, uri=EVIL, ui_command=EVIL))
    return path.as_uri()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_asks_nobody_complains_of_nothing_and_fits(
    visit: Callable[..., Visit], study: str, viewport: dict[str, int], colours: str
) -> None:
    visitor = visit(viewport=viewport, color_scheme=colours)
    page = visitor.goto(study)
    page.wait_for_timeout(200)
    assert visitor.requests == [study]
    assert visitor.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 384) == (colours == "dark")


def test_header_sorts_and_says_so_with_missing_values_last(
    visit: Callable[..., Visit], study: str
) -> None:
    page = visit().goto(study)
    header = page.locator("th[data-name=train_s]")
    header.get_by_role("button").click()
    trained_s = [float(text) for text in column(page, "train_s")]
    assert trained_s == sorted(trained_s)
    assert header.get_attribute("aria-sort") == "ascending"
    header.get_by_role("button").click()
    assert [float(text) for text in column(page, "train_s")] == trained_s[::-1]
    assert header.get_attribute("aria-sort") == "descending"
    assert page.locator("table.all [aria-sort]").count() == 1
    for order in ([0.5, 0.6, 0.7, 0.8, 0.9], [0.9, 0.8, 0.7, 0.6, 0.5]):
        page.locator("th[data-name=time_to_target_s] button").click()
        times = column(page, "time_to_target_s")
        assert [float(text) for text in times[:5]] == order
        assert times[5:] == ["–"] * 7


def test_rows_of_one_value_keep_their_order(visit: Callable[..., Visit], study: str) -> None:
    page = visit().goto(study)
    before = column(page, "trial_id")
    page.locator("th[data-name=batch_size] button").click()
    page.locator("th[data-name=batch_size] button").click()
    assert column(page, "trial_id") == before


def test_recipe_is_copied_as_it_is_and_can_be_trained(
    visit: Callable[..., Visit], study: str, tmp_path: Path
) -> None:
    page = visit().goto(study)
    button = page.locator(".recipe button.copy")
    button.click()
    page.wait_for_function("document.getElementById('said').textContent === 'Copied the recipe'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".recipe pre").text_content()
    assert "Copied" in (button.text_content() or "")
    (tmp_path / "best.yaml").write_text(copied)
    assert load_recipe(tmp_path / "best.yaml").recipe.epochs == 2.5


def test_copying_works_without_the_clipboards_interface(
    visit: Callable[..., Visit], study: str
) -> None:
    page = visit().page
    page.add_init_script("delete Navigator.prototype.clipboard")
    page.goto(study)
    page.locator(".line button.copy").first.click()
    page.wait_for_function("document.getElementById('said').textContent === 'Copied the command'")


def test_link_to_a_trial_unfolds_it_whatever_the_filter_says(
    visit: Callable[..., Visit], study: str
) -> None:
    page = visit().goto(study)
    page.get_by_label("Filter").fill("status=oom")
    assert column(page, "trial_id") == []
    page.locator("table.board a").first.click()
    opened = page.locator("tbody:target details")
    opened.locator("dl").wait_for(state="visible")
    assert opened.evaluate("details => details.open") is True


def test_keyboard_reaches_every_control(visit: Callable[..., Visit], study: str) -> None:
    page = visit().goto(study)
    reached = []
    for _ in range(90):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.outerHTML.slice(0, 60)"))
    for control in ('class="skip"', 'id="theme"', "data-copy=", 'name="text"', 'name="status"'):
        assert any(control in element for element in reached), control
    assert 'class="skip"' in reached[0]
    assert any(element.startswith('<button type="button" title=') for element in reached)


def test_theme_can_be_switched(visit: Callable[..., Visit], study: str) -> None:
    page = visit().goto(study)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.locator("#theme").click()
    assert page.evaluate(ground) != light
    page.locator("#theme").click()
    assert page.evaluate(ground) == light


def test_print_has_no_buttons_and_is_light(visit: Callable[..., Visit], study: str) -> None:
    page = visit(color_scheme="dark").goto(study)
    page.emulate_media(media="print")
    assert page.locator("button:visible").count() == page.locator("thead button").count()
    assert page.locator("form.controls").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"


def test_page_can_be_read_without_script(visit: Callable[..., Visit], study: str) -> None:
    page = visit(java_script_enabled=False).goto(study)
    assert page.locator("tbody[data-status]").first.is_visible()
    assert page.locator("button.copy").first.is_hidden()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_names_that_attack_do_nothing_and_show_as_text(
    visit: Callable[..., Visit], evil: str, viewport: dict[str, int]
) -> None:
    visitor = visit(viewport=viewport)
    page = visitor.goto(evil)
    page.locator("th[data-name=steps] button").click()
    page.locator("table.all th a").first.click()
    page.wait_for_timeout(300)
    assert (visitor.dialogs, visitor.complaints, visitor.requests) == ([], [], [evil])
    assert page.locator("h1").text_content() == EVIL
    assert page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_policy_stops_what_a_mistake_in_escaping_would_let_in(
    visit: Callable[..., Visit], evil: str, tmp_path: Path
) -> None:
    text = Path(evil.removeprefix("file://")).read_text()
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("<main", f"<script>alert(2)</script>{EVIL[2:]}<main", 1))
    visitor = visit()
    page = visitor.goto(broken.as_uri())
    page.wait_for_timeout(300)
    assert page.locator("img").count() == 1
    assert visitor.dialogs == []
    assert visitor.fetched == [broken.as_uri()]
    assert any("Content Security Policy" in text for text in visitor.complaints)
