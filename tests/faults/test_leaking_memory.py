"""Memory that a trial takes and does not give back: it ends as `oom`, or the next one finds it."""

from collections import defaultdict
from pathlib import Path
from statistics import median

import psutil
import pytest
from command import finished
from faulty_runs import (
    assert_each_once,
    assert_unlocked,
    by_fault,
    one_each,
    run_of,
    searched,
    searching,
    write_study,
)

pytestmark = pytest.mark.slow

NUM_TRIALS = 18
PAIR = one_each(["leaks", "none"])


def test_trials_that_leak_are_out_of_memory_by_their_limit(tmp_path: Path) -> None:
    write_study(tmp_path, **PAIR, resources="{memory_gib: 0.75}", epochs=40)
    searched(tmp_path, "tiny.yaml")
    assert_each_once(tmp_path, trials=2)
    run = run_of(by_fault(tmp_path)["leaks"])
    assert run["status"] == "oom"
    assert "out of memory" in run["stop_reason"] and run["traceback"]
    assert run_of(by_fault(tmp_path)["none"])["status"] == "missed"


def test_without_a_limit_the_systems_own_ends_the_trial_and_not_the_search(tmp_path: Path) -> None:
    """Here RLIMIT_DATA, which each process inherits: what is at hand without a container."""
    write_study(tmp_path, **{**PAIR, "concurrent": 1}, epochs=100)
    searched(tmp_path, "tiny.yaml", prefix=["prlimit", f"--data={3 * 2**30}"])
    assert_each_once(tmp_path, trials=2)
    assert_unlocked(tmp_path)
    run = run_of(by_fault(tmp_path)["leaks"])
    assert run["status"] in ("oom", "failed")
    assert run["traceback"]
    assert run_of(by_fault(tmp_path)["none"])["status"] == "missed"


def test_process_of_many_trials_does_not_grow(tmp_path: Path) -> None:
    """Each trial leaves cycles with 48 MiB, 0.8 GiB in all, to Python's collector."""
    model = "fault: leaks_a_bit, evaluations: 1"
    write_study(tmp_path, model=model, trials=NUM_TRIALS, epochs=1, concurrent=1)
    resident: dict[int, list[int]] = defaultdict(list)
    found: list[psutil.Process] = []
    with searching(tmp_path, "tiny.yaml") as search:

        def is_over() -> bool:
            found[:] = [each for each in found if each.is_running()] or search.named("TrialProcess")
            for process in found:
                try:
                    resident[len(finished(tmp_path))].append(process.memory_info().rss)
                except psutil.Error:
                    continue
            return len(finished(tmp_path)) == NUM_TRIALS

        search.wait_until(is_over)
        search.wait(within_s=60)
    assert_each_once(tmp_path, trials=NUM_TRIALS)
    peaks = [max(rss) / 2**20 for number, rss in sorted(resident.items()) if number > 2]
    third = len(peaks) // 3
    early, late = median(peaks[:third]), median(peaks[-third:])
    print(f"resident memory: {early:.0f} MiB in early trials, {late:.0f} MiB in late ones")
    assert late < early + 60, peaks
