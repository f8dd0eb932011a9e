"""A page in a real browser, and what it did."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}


def chromium(own: str) -> str:
    """Returns the browser to drive: the system's, or playwright's `own`."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is not None:
        return found
    if Path(own).exists():
        return own
    message = f"no browser: one of {', '.join(BROWSERS)} must be on PATH (apt install chromium)"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


class Visit:
    """A page that is open, and what it did."""

    def __init__(self, context: "BrowserContext") -> None:
        self.page = context.new_page()
        self.requests: list[str] = []
        self.fetched: list[str] = []
        self.complaints: list[str] = []
        self.dialogs: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfinished", lambda request: self.fetched.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("console", self._listen)

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def goto(self, address: str) -> "Page":
        self.page.goto(address)
        return self.page


def column(page: "Page", name: str) -> list[str]:
    """Returns the texts of a column of the table of all trials, hidden rows left out."""
    script = """name => {
        const table = document.querySelector("table.all");
        const index = [...table.tHead.rows[0].cells].findIndex(h => h.dataset.name === name);
        const bodies = [...table.tBodies].filter(body => !body.hidden);
        return bodies.map(body => body.rows[0].cells[index].textContent.trim());
    }"""
    found: list[str] = page.evaluate(script, name)
    return found
