"""Memory that a trial takes and does not give back, up to a limit that is not the search's."""

from pathlib import Path

import pytest
from faulty_runs import (
    assert_each_once,
    assert_unlocked,
    by_fault,
    one_each,
    run_of,
    searched,
    write_study,
)

pytestmark = pytest.mark.slow


def test_systems_own_limit_ends_the_trial_and_not_the_search(tmp_path: Path) -> None:
    """Here RLIMIT_DATA, which each process inherits: what is at hand without a container."""
    write_study(tmp_path, **one_each(["leaks", "none"], concurrent=1), epochs=8)
    searched(tmp_path, "tiny.yaml", prefix=["prlimit", f"--data={3 * 2**30}"])
    assert_each_once(tmp_path, trials=2)
    assert_unlocked(tmp_path)
    run = run_of(by_fault(tmp_path)["leaks"])
    assert run["status"] in ("oom", "failed")
    assert run["traceback"]
    assert run_of(by_fault(tmp_path)["none"])["status"] == "missed"
