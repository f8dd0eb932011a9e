"""A real search that is steered from its page, in a real browser, until it ends."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faulty_runs import limits, searching, write_study
from helpers.command import finished, ledger, start
from helpers.reporting.browser import DESKTOP, PHONE, Visit

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

SOON = limits({"tuning.ray.trial_process.END_S": 2})


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yields the address of the store in `folder`, as `tune-speed serve` shows it."""
    process = start("serve", "--port", "0", "--json", folder=folder)
    try:
        assert process.stdout is not None
        text = "".join(process.stdout.readline() for _ in range(3))
        yield json.loads(text)["url"].rstrip("/")
    finally:
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert "Traceback" not in err, err


def answer(page: "Page", action: str, text: str) -> None:
    """Waits for what stands beside a button."""
    page.locator(f"[data-answer={action}]", has_text=text).wait_for()


def opened(page: "Page", address: str) -> None:
    """Opens the study's page as soon as MLflow has the search."""
    while (loaded := page.goto(address)) is None or not loaded.ok:
        page.wait_for_timeout(300)


def test_search_is_paused_changed_and_told_what_to_try_from_its_page(
    tmp_path: Path, visit: Callable[..., Visit]
) -> None:
    write_study(
        tmp_path, model="fault: waits, evaluations: 1", trials=3, concurrent=1, hang_after="600s"
    )
    visitor = visit(is_offline=False)
    page = visitor.page
    page.set_default_timeout(40_000)
    with searching(tmp_path, "tiny.yaml", **SOON) as search:
        search.wait_until(lambda: list((tmp_path / "faults").glob("training-*")))
        with served(tmp_path) as address:
            opened(page, f"{address}/studies/tiny")
            visitor.complaints.clear()
            steer_by_hand(page, tmp_path)
            fits(page)
            refused(page)
            page.get_by_role("button", name="Go on").click()
            answer(page, "pause", "go-on: trials begin again")
            page.get_by_role("button", name="Stop t0001").wait_for()
            (tmp_path / "faults" / "go").touch()
            assert search.wait(within_s=120) in (0, 1), search.err
            page.get_by_text("Not to be steered from here: no search of it runs.").wait_for()
            assert page.locator("[data-action]").count() == 0
    tried = [e for e in ledger(tmp_path) if e["event"] == "proposed"][1]
    assert (tried["trial_id"], tried["params"]) == ("t0001", {"optimizer.sgd.lr": 0.3})
    assert len(finished(tmp_path)) == 4
    # The browser itself tells that an answer was a refusal.
    assert [each for each in visitor.complaints if "400" not in each] == []


def steer_by_hand(page: "Page", folder: Path) -> None:
    """Pauses, stops the trial, sets and tries: with a mouse, and with a keyboard."""
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    answer(page, "pause", "pause: no trial begins until `go-on`")
    assert "no trial begins" in (page.locator("#said").text_content() or "")
    page.get_by_role("button", name="Go on").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Go on"
    page.get_by_text("Add a trial").click()
    rate = page.get_by_label("optimizer.sgd.lr")
    rate.fill("0.3")
    page.get_by_role("button", name="Stop t0000").click()
    rate.focus()
    page.keyboard.press("Home")
    # All of the page is another when the first trial has ended, but for what is typed.
    page.get_by_text("No trial has finished yet").wait_for(state="detached")
    page.locator("[data-slot=finished]", has_text="1 of 3").wait_for()
    page.wait_for_timeout(3000)
    typed = "[document.activeElement.value, document.activeElement.selectionStart]"
    assert page.evaluate(typed) == ["0.3", 0]
    assert finished(folder)[0]["runs"][-1]["stop_reason"] == "stopped by hand"
    page.get_by_text("Change the search").click()
    page.get_by_label("Trials", exact=True).fill("4")
    page.keyboard.press("Enter")
    answer(page, "set", "set trials=4: trials was 3")
    page.locator("[data-slot=finished]", has_text="1 of 4").wait_for()
    assert rate.input_value() == "0.3"
    page.get_by_role("button", name="Add it").click()
    answer(page, "try", "try optimizer.sgd.lr=0.3: the next trial to begin")
    assert rate.input_value() == ""


def refused(page: "Page") -> None:
    page.get_by_label("Time budget").fill("a while")
    page.get_by_role("button", name="Change it").click()
    answer(page, "set", "time_budget: must ")
    assert page.get_by_label("Time budget").input_value() == "a while"
    page.get_by_label("Time budget").fill("none")
    page.get_by_role("button", name="Change it").click()
    answer(page, "set", "set time_budget=null: time_budget was not limited")


def fits(page: "Page") -> None:
    """Neither a phone nor the dark is too narrow for the forms."""
    for width, colours in (
        (PHONE, "dark"),
        (PHONE, "light"),
        (DESKTOP, "dark"),
        (DESKTOP, "light"),
    ):
        page.set_viewport_size(width)
        page.emulate_media(color_scheme=colours)
        assert page.evaluate("document.documentElement.scrollWidth") <= width["width"]
        if shots := os.environ.get("SHOTS"):
            page.locator(".now").screenshot(path=f"{shots}/{width['width']}-{colours}.png")
