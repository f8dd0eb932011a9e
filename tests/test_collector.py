"""Python's garbage collector is told to look less while much is imported, and as usual after."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tune_speed import collector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_patient_collector_looks_seldom() -> None:
    collector.make_patient()
    before = gc.get_stats()[0]["collections"]
    kept = [[number] for number in range(50_000)]
    assert gc.get_stats()[0]["collections"] - before <= 1, len(kept)


def test_settled_collector_is_the_usual_one_and_leaves_out_what_is_there() -> None:
    usual = gc.get_threshold()
    collector.make_patient()
    assert gc.get_threshold() != usual
    kept = [[number] for number in range(10_000)]
    collector.settle()
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() > len(kept)


def test_command_ends_without_a_last_look_at_what_is_alive() -> None:
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 10_000))\n"  # Comes last.
        "sys.argv[1:] = ['--help']\n"
        "from tune_speed.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
