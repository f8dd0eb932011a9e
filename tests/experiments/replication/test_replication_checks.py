import numpy as np
import pytest
import torch

from tune_speed.experiments.replication import checks
from tune_speed.experiments.replication.checks import run_checks

CPU = torch.device("cpu")
NEEDS_GPU = ("pinned_copy", "hidden_syncs")


def test_step_of_sixteen_by_four_has_sixty_four_samples():
    (row,) = run_checks(["effective_batch"], CPU)
    assert (row.expected, row.ours, row.agrees) == ("64", "64", "yes")


def test_half_precision_loses_what_numpy_says_it_loses():
    assert float(np.float16(2.0**-25)) == 0 and float(np.float16(2.0**-24)) == 2.0**-24
    rows = run_checks(["fp16_underflow"], CPU)
    assert [row.agrees for row in rows] == ["yes"] * 3
    assert "2^-25 becomes 0" in rows[0].ours


def test_scaler_decides_whether_the_weight_moves():
    assert checks._weight_after_step(scale=1.0, device=CPU) == 0
    assert checks._weight_after_step(scale=2.0**16, device=CPU) == -(2.0**-25)


@pytest.mark.parametrize("name", NEEDS_GPU)
def test_what_needs_a_gpu_is_not_applicable_without(name):
    rows = run_checks([name], CPU)
    assert {row.agrees for row in rows} == {"not applicable here"}


def test_starving_is_seen():
    starved, fed = run_checks(["loader_starvation"], CPU)
    assert starved.agrees == "yes"
    assert fed.check == "loader_starvation"


def copies(pageable_s, pinned_s, *, call_s=0.001):
    return [(call_s, s) for s in pageable_s], [(call_s, s) for s in pinned_s]


# Rounds of 20 in which pinned memory is faster, and the verdict.
@pytest.mark.parametrize(
    ("faster", "agrees"), [(20, "yes"), (15, "yes"), (10, "not decided"), (5, "no"), (0, "no")]
)
def test_pinned_memory_is_faster_where_most_rounds_say_so(monkeypatch, faster, agrees):
    seconds = [0.01] * 20, [0.005] * faster + [0.02] * (20 - faster)
    monkeypatch.setattr(checks, "_copied", lambda device: copies(*seconds))
    rate, call = run_checks(["pinned_copy"], torch.device("cuda"))
    assert rate.agrees == agrees
    assert f"against 6.7 GB/s: medians of 20 copies of 64 MiB each, faster in {faster}" in rate.ours
    assert call.agrees == "yes"


def test_rows_come_in_the_order_that_was_asked_for():
    rows = run_checks(["pinned_copy", "effective_batch"], CPU)
    assert [row.check for row in rows] == ["pinned_copy", "pinned_copy", "effective_batch"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NEEDS_GPU)
def test_gpu_gives_every_answer(name):
    rows = run_checks([name], torch.device("cuda"))
    assert [row.agrees for row in rows] == ["yes"] * len(rows), rows
