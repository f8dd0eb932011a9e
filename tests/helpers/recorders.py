"""What `pytest --record-durations FILE` and `--record-lines FOLDER` note."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def cpu_s() -> float:
    """Returns the processor seconds of this process and of the ended ones that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class DurationsRecorder:
    """Appends a line of JSON a phase of a test, and one a fixture, for `tests/durations.py`."""

    def __init__(self, path: Path) -> None:
        # Not `os.write`, which tests replace; without a buffer, a line is one call.
        self._file = path.open("ab", buffering=0)
        self._cpu_s = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        began = time.perf_counter()
        try:
            return (yield)  # type: ignore[return-value]
        finally:
            self._append(
                fixture=f"{fixturedef.baseid}::{fixturedef.argname}",
                scope=fixturedef.scope,
                s=time.perf_counter() - began,
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report: Any = yield
        before, self._cpu_s = self._cpu_s, cpu_s()
        slow = item.get_closest_marker("slow") is not None
        self._append(
            test=report.nodeid,
            phase=report.when,
            s=report.duration,
            cpu_s=self._cpu_s - before,
            slow=slow,
            outcome=report.outcome,
        )
        return report

    def pytest_unconfigure(self) -> None:
        self._file.close()

    def _append(self, **line: Any) -> None:
        self._file.write((json.dumps(line) + "\n").encode())


# --- Lines of the package that are run

PACKAGE = Path(__file__).resolve().parents[2] / "tune_speed"


class LinesRecorder:
    """Sees what is imported from now on; the package must not have been.

    For `tests/coverage_by_room.py`. slipcover puts probes into functions when they are imported:
    tracing, which coverage.py needs on Python 3.11, makes the fast set 1.7 times as long.
    """

    def __init__(self, folder: Path) -> None:
        from slipcover import Slipcover
        from slipcover.importer import FileMatcher, ImportManager

        self._folder = folder
        # With `source`, files that nothing imports count with all their lines.
        self._slipcover = Slipcover(source=[str(PACKAGE)])
        ImportManager(self._slipcover, FileMatcher(sources=[PACKAGE])).__enter__()

    def pytest_unconfigure(self) -> None:
        files = self._slipcover.get_coverage()["files"]
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{os.getpid()}.json").write_text(json.dumps(files))
