from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from helpers.reporting.browser import PHONE, Visit, column
from helpers.reporting.pages import varied

from tune_speed.core.errors import ConfigError
from tune_speed.tracking.filter.where import parse_where

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

FILTERS = (
    "status=reached",
    "status != reached and epochs<=15",
    "status IS NONE OR Not status=missed",
    "batch_size in (32, 64) and not (epochs > 10 or train_s<5)",
    "batch_size not in (32)",
    "optimizer=sgd",
    "optimizer.sgd.lr >= 1e-2",
    "optimizer.sgd.lr is none",
    "optimizer.adamw.weight_decay is not none and time_to_target_s is none",
    "clip_norm is none",
    "clip_norm != 3",
    "lr>.01 AND lr<+1",
    "weight_decay < 0.001 or lr > 0.5",
    "stop_reason ~ CAPPED",
    "trial_id = 't0007' or trial_id=\"t0008\"",
    "trial_id > t0030",
    "started_at >= '2026-01-01T00:20'",
    "precision = bf16",
    "batch_size = five",
    "batch_size != five",
    "batch_size = true",
    "deterministic != true",
    "stop_reason = 'ended as ''x'''",
    "final_metric>=0.9 and hits==1",
)
MISTAKES = (
    "epochs",
    "epochs<",
    "epochs<=3 lr>0.01",
    "nothing like it",
    "no_such_field=1",
    "status=reachd",
    "status=reached and",
    "(status=reached",
    "status=reached)",
    "status='reached",
    "epochs=none",
    "epochs is 3",
    "steps ~ 3",
    "steps = many",
    "batch_size < true",
    "batch_size in 3",
    "batch_size in (3",
    "batch_size not 3",
    "and",
    "!epochs",
    "epochs=1e999",
    "not " * 60 + "epochs=1",
)


def test_filter_keeps_what_where_keeps(page: "Page") -> None:
    records, text = varied(), page.get_by_label("Filter")
    kept = {}
    for where in FILTERS:
        text.fill(where)
        assert page.locator(".problem").text_content() == "", where
        found = parse_where(where)
        kept[where] = {record.trial_id for record in records if found.matches(record)}
        assert set(column(page, "trial_id")) == kept[where], where
    assert sum(0 < len(trials) < 40 for trials in kept.values()) >= 15


def test_filter_knows_its_rows_after_they_were_sorted(page: "Page") -> None:
    page.locator("th[data-name=epochs] button").click()
    page.get_by_label("Filter").fill("epochs < 10")
    few = {record.trial_id for record in varied() if record.params["epochs"] < 10}
    assert set(column(page, "trial_id")) == few


@pytest.mark.parametrize("where", MISTAKES)
def test_what_where_refuses_is_told_and_hides_nothing(page: "Page", where: str) -> None:
    with pytest.raises(ConfigError):
        parse_where(where).check(varied())
    page.get_by_label("Filter").fill(where)
    assert "Not understood, so all are shown: " in (page.locator(".problem").text_content() or "")
    assert page.get_by_label("Filter").get_attribute("aria-invalid") == "true"
    assert len(column(page, "trial_id")) == 40
    page.get_by_label("Filter").fill("")
    assert page.locator(".problem").is_hidden()


def test_count_and_the_list_of_endings_go_with_the_filter(page: "Page") -> None:
    count = page.locator("form.controls output")
    assert count.text_content() == "40 trials"
    page.get_by_label("Filter").fill("batch_size=64")
    page.locator("select[name=status]").select_option("missed")
    records = [r for r in varied() if r.params["batch_size"] == 64 and r.status.value == "missed"]
    assert set(column(page, "trial_id")) == {record.trial_id for record in records}
    assert count.text_content() == f"{len(records)} of 40 trials"


def test_each_trial_is_one_line_that_folds_out_and_in(page: "Page") -> None:
    heights = page.evaluate(
        "[...document.querySelectorAll('table.all tbody')].map(b => b.offsetHeight)"
    )
    assert max(heights) < 40
    link, more = page.locator("table.all th a").first, page.locator("table.all .more").first
    assert more.is_hidden()
    link.click()
    more.locator("dl").wait_for(state="visible")
    assert link.get_attribute("aria-expanded") == "true"
    link.click()
    more.wait_for(state="hidden")
    link.click()
    more.locator("dl").wait_for(state="visible")


@pytest.mark.parametrize(("options", "stay"), [({}, 2), ({"viewport": PHONE}, 1)])
def test_first_columns_stay_while_the_others_scroll(
    visit: Callable[..., Visit], address: str, options: dict[str, object], stay: int
) -> None:
    page = visit(**options).goto(address)
    script = """stay => {
        const scroll = document.querySelector(".scroll.tall");
        const names = ["thead tr", "tbody:nth-of-type(6) tr"];
        const rows = names.map(name => scroll.querySelector(name));
        const left = cell => cell.getBoundingClientRect().x;
        const places = () => rows.map(row => [...row.cells].map(left));
        const before = places();
        scroll.scrollLeft = 120;
        scroll.scrollTop = 60;
        scroll.scrollIntoView({behavior: "instant"});
        const isSeen = cell => {
            const {x, y, width, height} = cell.getBoundingClientRect();
            return cell.contains(document.elementFromPoint(x + width / 2, y + height / 2));
        };
        const seen = rows.flatMap(row => [...row.cells].slice(0, stay)).map(isSeen);
        const tops = [...rows[0].cells].map(cell => cell.getBoundingClientRect().y);
        return [before, places(), scroll.scrollLeft, seen, new Set(tops).size];
    }"""
    before, after, scrolled, seen, num_tops = page.evaluate(script, stay)
    assert scrolled > 60 and all(seen) and num_tops == 1
    for old, new in zip(before, after, strict=True):
        moved = [x - y > 1 for x, y in zip(old, new, strict=True)]
        assert moved == [False] * stay + [True] * (len(moved) - stay)
