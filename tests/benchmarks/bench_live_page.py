"""How soon the live page of a study of 1,000 trials is painted in a browser.

    python tests/benchmarks/bench_live_page.py

Takes about a minute, and needs Chromium. A store is filled with one synthetic study
(`synthetic_store`), `tune-speed serve` shows it, and a browser of 1280 × 900 opens it as a new
visitor several times: the first finds nothing read or drawn (`cold`), the others what it left.
Milliseconds from the start of the navigation until the first paint, the answer, and two figures
below it. The bar is a second for the answer.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from helpers.reporting.browser import DESKTOP, chromium  # noqa: E402
from synthetic_store import fill  # noqa: E402

STUDY, BAR_MS = "study-0000", 1000.0
PAINTED = """new Promise(done => new PerformanceObserver(list => {
    const found = list.getEntriesByName("first-contentful-paint")[0];
    if (found) done(found.startTime);
}).observe({type: "paint", buffered: true}))"""


def large_store(folder: Path, *, trials: int) -> str:
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    fill(uri, num_trials=trials, trials_per_study=trials)
    return uri


def first_paint(page: Any, address: str) -> dict[str, float]:
    """Returns when what was there [ms]."""
    page.goto(address, wait_until="commit")
    page.locator(".answer .big").wait_for(timeout=30_000)
    answer_ms = page.evaluate("performance.now()")
    page.locator("figure svg").nth(1).wait_for(timeout=60_000)
    drawn_ms = page.evaluate("performance.now()")
    found = {"paint_ms": page.evaluate(PAINTED), "answer_ms": answer_ms, "drawn_ms": drawn_ms}
    return {name: round(value, 1) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="bench_live_page-") as name, sync_playwright() as play:
        large_store(Path(name), trials=arguments.trials)
        command = [str(Path(sys.executable).parent / "tune-speed"), "serve", "--port", "0"]
        server = subprocess.Popen(command, cwd=name, stdout=subprocess.PIPE, text=True)
        browser = play.chromium.launch(
            executable_path=chromium(play.chromium.executable_path), args=["--no-sandbox"]
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().rpartition(" ")[2].strip()
            found = [
                first_paint(
                    browser.new_context(viewport=DESKTOP).new_page(), f"{address}studies/{STUDY}"
                )
                for _ in range(1 + arguments.repeats)
            ]
        finally:
            browser.close()
            server.terminate()
            server.wait()
    cold, *warm = found
    medians = {key: statistics.median(each[key] for each in warm) for key in cold}
    facts = {
        "trials": arguments.trials,
        "cold": cold,
        "warm, median": medians,
        "is_within_bar": all(each["answer_ms"] < BAR_MS for each in found),
    }
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
