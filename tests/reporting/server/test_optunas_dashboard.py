import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.command import run
from helpers.reporting.browser import DESKTOP

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.slow
def test_optunas_dashboard_shows_a_search(browser: "Browser", tmp_path: Path) -> None:
    from playwright.sync_api import expect

    words = ["search", "digits_quickstart", "--set", "search.trials=4"]
    easy = ["--set", "workload.target.value=0.3", "--set", "recipe.epochs.high=5"]
    done = run(*words, *easy, folder=tmp_path)
    journal = tmp_path / "tune_speed_studies" / "digits_quickstart" / "optuna.log"
    assert done.code == 0, done.err
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        at = f"http://127.0.0.1:{probe.getsockname()[1]}"
    dashboard = Path(sys.executable).with_name("optuna-dashboard")
    with subprocess.Popen([dashboard, str(journal), "--port", at.rpartition(":")[2]]) as server:
        try:
            deadline_s = time.monotonic() + 60
            while not _answers(f"{at}/api/studies"):
                assert time.monotonic() < deadline_s
                time.sleep(0.2)
            page = browser.new_page(viewport=DESKTOP)
            page.goto(f"{at}/dashboard/studies/0/trials")
            expect(page.get_by_text("Trial 0").first).to_be_visible()
            page.goto(f"{at}/dashboard/studies/0")
            expect(page.get_by_text("Best Trial").first).to_be_visible()
            page.close()
        finally:
            server.terminate()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=1) as answer:
            return b"digits_quickstart" in answer.read()
    except OSError:
        return False
