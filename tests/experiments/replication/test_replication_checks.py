import re

import numpy as np
import pytest
import torch

from tune_speed.experiments.replication import checks
from tune_speed.experiments.replication.checks import CHECKS, NEEDS_GPU, run_checks
from tune_speed.experiments.replication.shipped import sections, shipped_replications
from tune_speed.study.replication import CheckConfig
from tune_speed.training.autotune.loader_workers import MOST_WAIT

CPU = torch.device("cpu")
ASKED = {
    check.check: check
    for path in shipped_replications().values()
    for check in sections(path)[0].checks
}


def answered(*names, device=CPU):
    asked = [CheckConfig(question="Is it?", expected="yes", check=name) for name in names]
    return run_checks(asked, torch.device(device))


def test_half_precision_loses_what_numpy_says_it_loses():
    assert float(np.float16(2.0**-25)) == 0 and float(np.float16(2.0**-24)) == 2.0**-24
    assert "2^-25 becomes 0" in answered("fp16_loses")[0].ours


def test_scaler_decides_whether_the_weight_moves():
    assert checks._weight_after_step(scale=1.0, device=CPU) == 0
    assert checks._weight_after_step(scale=2.0**16, device=CPU) == -(2.0**-25)


@pytest.mark.parametrize("name", CHECKS)
def test_every_answer_is_the_expected_one_or_needs_a_gpu(name):
    (row,) = answered(name)
    assert row.agrees == ("not applicable here" if name in NEEDS_GPU else "yes")


def test_files_ask_what_can_be_answered_and_say_the_figures_it_is_tried_with():
    assert ASKED.keys() == CHECKS.keys()

    def numbers(text: str) -> list[float]:
        return [float(number) for number in re.findall(r"\d+", text)]

    slow, step = (1000 * seconds for seconds in (checks.SLOW_BATCH_S, checks.STEP_S))
    assert numbers(ASKED["starving_is_seen"].question) == [slow, step]
    assert numbers(ASKED["starving_is_seen"].expected) == [100 * slow / (slow + step)]
    assert numbers(ASKED["nothing_is_seen"].expected) == [100 * MOST_WAIT]
    assert numbers(ASKED["hidden_syncs"].question) == [checks.STEPS]


# Rounds of 20 in which pinned memory is faster, and the verdict.
@pytest.mark.parametrize(
    ("faster", "agrees"), [(20, "yes"), (15, "yes"), (10, "not decided"), (5, "no"), (0, "no")]
)
def test_pinned_memory_is_faster_where_most_rounds_say_so(monkeypatch, faster, agrees):
    seconds = [0.01] * 20, [0.005] * faster + [0.02] * (20 - faster)
    copies = tuple([(0.001, each) for each in copy_s] for copy_s in seconds)
    monkeypatch.setattr(checks, "_copied", lambda device: copies)
    rate, call = answered("pinned_is_faster", "host_continues", device="cuda")
    assert rate.agrees == agrees
    assert f"against 6.7 GB/s: medians of 20 copies of 64 MiB each, faster in {faster}" in rate.ours
    assert call.agrees == "yes"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NEEDS_GPU)
def test_gpu_gives_every_answer(name):
    (row,) = answered(name, device="cuda")
    assert row.agrees == "yes", row
