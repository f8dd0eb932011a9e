import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from helpers.reporting.pages import certified, ordinary, page_of, running, searched, trained, viewed
from markupsafe import escape

from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.page import trial_table
from tune_speed.tracking.notes import Note

EVIL = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
VOID = {"meta", "link", "input", "img", "br"}


class Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.mistakes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.mistakes.append(f"</{tag}> at {self.getpos()}")


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    return parser


@pytest.fixture(scope="module")
def page() -> str:
    return page_of([*ordinary(), certified("t0000", 0.5, 0.6, 0.7)])


def test_page_is_well_formed_and_ids_are_unique(page: str) -> None:
    found = outline(page)
    assert found.mistakes == [] and found.open == []
    assert len(found.ids) == len(set(found.ids))


def test_headings_go_down_one_level_at_a_time(page: str) -> None:
    levels = [int(tag[1]) for tag in outline(page).tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_searches_are_told_without_what_programs_read() -> None:
    search = searched()
    tags = {**search.tags, "boards": '[{"workload": "digits"', "boards.1": '"n": 1}]'}
    page = page_of(ordinary(), searches=(replace(search, tags=tags),))
    told = page.partition('<h2 id="searches">')[2]
    assert "<b>policy</b> time_to_target" in told
    assert "boards" not in told and "{" not in told.partition("</section>")[0]


def test_run_ids_are_links_where_a_server_shows_them() -> None:
    site = "http://mlflow:5000/#/experiments/1"
    page = page_of(ordinary(), running=(running("t0042"),), url=site)
    for run_id in ("a" * 32, "b" * 32):
        assert f'<a href="{site}/runs/{run_id}">{run_id}</a>' in page
    assert 'href="None' not in page_of(ordinary()) and "/runs/" not in page_of(ordinary())


def test_every_link_inside_the_page_has_its_target(page: str) -> None:
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert "trial-t0000" in targets
    assert targets <= set(outline(page).ids)


def test_page_of_very_many_trials_has_rows_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = page_of(ordinary())
    assert "All trials</h3>" in whole and "--format csv" not in whole
    monkeypatch.setattr(trial_table, "MOST_ROWS", 7)
    page = page_of(ordinary())
    rows = [name for name in outline(page).ids if name.startswith("trial-")]
    assert rows == [f"trial-t000{number}" for number in (0, 1, 2, 3, 4, 9, 8)]
    assert set(re.findall(r'href="#(trial-[^"]+)"', page)) <= set(rows)
    assert "The first 7 of 12 trials" in page and "<dt>Trials</dt><dd>12</dd>" in page
    assert "--misses --top 12 --format csv</code>" in page


def test_page_refers_to_nothing_outside(page: str) -> None:
    outside = re.findall(r"""(?:src|href|action)\s*=\s*["'](?!#|data:,)[^"']*""", page)
    assert outside == []
    assert "@import" not in page and not re.search(r"url\((?!#|&quot;)", page)


FAILED = {"runs": (trained("t0000", Status.FAILED).runs[0].model_copy(update={"evaluations": ()}),)}


def test_names_are_escaped_wherever_they_stand() -> None:
    changes = {
        "study": EVIL,
        "device": EVIL,
        "workload_name": EVIL,
        "proposal_reason": EVIL,
        "environment": {EVIL: EVIL},
        "params": {EVIL: EVIL},
    }
    page = page_of(
        [trained(EVIL, Status.FAILED, **changes), trained("t0001", **changes)],
        uri=EVIL,
        url=f"javascript:{EVIL}",
        ui_command=EVIL,
    )
    assert "<img" not in page
    assert page.count("<script") == 1
    assert 'href="javascript' not in page
    assert outline(page).mistakes == []


def test_what_people_noted_is_shown_with_the_trial_as_text() -> None:
    view = viewed(ordinary())
    first, *rest = view.trials
    page = page_of(ordinary(), trials=(replace(first, note=Note(EVIL, True)), *rest))
    assert page.count('title="starred">★') == 1
    assert f"<strong>{escape(EVIL)}</strong>" in page and EVIL not in page


def text_of(page: str) -> str:
    """Returns what a page says, an element a line, without its figures."""
    inside = re.sub(r"(?s)<(script|style|svg|template).*?</\1>", "", page)
    lines = (unescape(" ".join(line.split())) for line in re.split("<[^>]*>", inside))
    return "\n".join(line for line in lines if line and not line.startswith("tune_speed "))


RUNNING: dict[str, Any] = {"searches": (searched(is_running=True),), "running": (running("t0042"),)}
MISSED = [trained(f"t{i:04d}", Status.MISSED, time_s=1.0 + i) for i in range(3)]
PAGES: dict[str, tuple[list[TrialRecord], dict[str, Any]]] = {
    "certified": ([*ordinary(), certified("t0000", 0.5, 0.6, 0.7)], {}),
    "running": ([trained("t0000")], {"interrupted": 2, **RUNNING}),
    "two devices": ([*ordinary()[:2], trained("t0100", time_s=0.01, device="NVIDIA H200")], {}),
    "missed": (MISSED, {}),
    "failed": ([trained("t0000", Status.FAILED).model_copy(update=FAILED)], {}),
    "nothing": ([], {}),
    "begun": ([], {"searches": RUNNING["searches"]}),
}


@pytest.mark.parametrize("name", PAGES)
def test_page_of_a_study(name: str, kept_text: Callable[[str], None]) -> None:
    records, changes = PAGES[name]
    kept_text(text_of(page_of(records, **changes)))
