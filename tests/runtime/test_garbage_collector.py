"""Python's garbage collector is told to look less while much is imported, and as usual after."""

import gc
from collections.abc import Iterator

import pytest

from tune_speed.runtime import process


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()  # Another test may have run a command here.
    gc.set_threshold(*process.USUAL)
    yield  # What is frozen stays so, imports above all: all later collections would take 0.4 s.
    gc.set_threshold(*thresholds)


def test_patient_collector_looks_seldom() -> None:
    process.make_patient()
    before = gc.get_stats()[0]["collections"]
    kept = [[number] for number in range(50_000)]
    assert gc.get_stats()[0]["collections"] - before <= 1, len(kept)


def test_settled_collector_is_the_usual_one_and_leaves_out_what_is_there() -> None:
    process.make_patient()
    assert gc.get_threshold() != process.USUAL
    kept, before = [[number] for number in range(10_000)], gc.get_freeze_count()
    process.settle()
    assert gc.get_threshold() == process.USUAL
    assert gc.get_freeze_count() - before > len(kept)
