"""A browser, started once."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from browsing import DESKTOP, Visit, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = chromium(playwright.chromium.executable_path)
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: "Browser") -> Iterator[Callable[..., Visit]]:
    contexts: list[BrowserContext] = []

    def make(*, is_offline: bool = True, **options: Any) -> Visit:
        contexts.append(browser.new_context(**{"viewport": DESKTOP, **options}))
        contexts[-1].set_default_timeout(10_000)
        contexts[-1].set_offline(is_offline)
        contexts[-1].grant_permissions(["clipboard-read", "clipboard-write"])
        return Visit(contexts[-1])

    yield make
    for context in contexts:
        context.close()
