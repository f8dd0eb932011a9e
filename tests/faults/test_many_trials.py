"""A process of many trials, whose clock is set back and forth: neither memory nor time is lost.

At last a trial takes memory and does not give it back, up to a limit that is not the search's.
"""

import sqlite3
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest
from faulty_runs import (
    Search,
    assert_each_once,
    assert_unlocked,
    by_fault,
    run_of,
    searching,
    write_study,
)
from helpers.command import finished
from jumping_clock import JumpingClock

pytestmark = pytest.mark.slow

NUM_COLLECTED = 12
POINTS = [
    *(["{model.faulty.fault: leaks_a_bit, epochs: 1}"] * NUM_COLLECTED),
    "{model.faulty.fault: leaks, epochs: 8}",
    "{model.faulty.fault: none, epochs: 1}",
]
NUM_TRIALS = len(POINTS)
SYSTEMS_LIMIT = ["prlimit", f"--data={3 * 2**30}"]
"""RLIMIT_DATA, which each process inherits: what is at hand without a container."""
JUMPS = (timedelta(hours=-30), timedelta(hours=40), timedelta(days=-400), timedelta(hours=2))


@dataclass
class Seen:
    folder: Path
    took_s: float = 0.0
    resident: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Resident memory of the process [bytes], by the number of trials that had finished."""

    @property
    def records(self) -> list[dict[str, Any]]:
        return finished(self.folder)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Seen:
    """A search whose trials leave cycles with 48 MiB each, 0.6 GiB in all, to the collector."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        seen = Seen(tmp_path_factory.mktemp("many"))
        clock = JumpingClock(seen.folder)
        write_study(
            seen.folder,
            model="fault: {choices: [leaks_a_bit, leaks, none]}, evaluations: 1",
            trials=NUM_TRIALS,
            points_to_evaluate=f"[{', '.join(POINTS)}]",
            epochs="{choices: [1, 8]}",
            concurrent=1,
            time_budget="60m",
            checkpoint_every="0.1s",
        )
        began = time.monotonic()
        limited = searching(seen.folder, "tiny.yaml", prefix=SYSTEMS_LIMIT, **clock.variables)
        with limited as search:
            search.wait_until(lambda: look(search, seen, clock))
            code = search.wait(within_s=120)
            seen.took_s = time.monotonic() - began
            assert code == 1, search.err
            assert search.left_after(20) == []
        return seen


def look(search: Search, seen: Seen, clock: JumpingClock) -> bool:
    """Notes the process's memory, and lets the clock jump after some trials; whether all ended."""
    number = len(seen.records)
    for process in search.named("TrialProcess"):
        try:
            seen.resident[number].append(process.memory_info().rss)
        except psutil.Error:
            continue
    if due := JUMPS[: (number + 2) // 3]:
        clock.jump_to(due[-1])
    return number == NUM_TRIALS


def test_memory_that_only_the_collector_frees_does_not_add_up(seen: Seen) -> None:
    collected = range(3, NUM_COLLECTED)
    peaks = [max(rss) / 2**20 for n, rss in sorted(seen.resident.items()) if n in collected]
    third = len(peaks) // 3
    early, late = median(peaks[:third]), median(peaks[-third:])
    print(f"resident memory: {early:.0f} MiB in early trials, {late:.0f} MiB in late ones")
    assert late < early + 60, peaks


def test_jumps_of_the_clock_change_nothing_but_dates(seen: Seen) -> None:
    assert_each_once(seen.folder, trials=NUM_TRIALS)
    for record in seen.records[:NUM_COLLECTED]:
        run = run_of(record)
        assert run["status"] == "missed", run["stop_reason"]
        assert all(0 <= spent_s <= seen.took_s for spent_s in run["clocks"].values()), run["clocks"]
        on_clock = [evaluation["train_s"] for evaluation in run["evaluations"]]
        assert on_clock == sorted(on_clock) and on_clock[0] == 0
    # The clock did jump: MLflow keeps the moments at which the search began and ended.
    with closing(sqlite3.connect(seen.folder / "mlflow.db")) as connection:
        query = "select max(end_time - start_time) from runs"
        assert connection.execute(query).fetchone()[0] > 1000 * 3600


def test_systems_own_limit_of_memory_ends_the_trial_and_not_the_search(seen: Seen) -> None:
    assert_unlocked(seen.folder)
    run = run_of(by_fault(seen.folder)["leaks"])
    assert run["status"] in ("oom", "failed")
    assert run["traceback"]
    assert run_of(by_fault(seen.folder)["none"])["status"] == "missed"
