from typing import Any

import pytest
import torch
from helpers.experiments.profiles import TIMES
from helpers.training.tiny import CPU, make_recipe, make_splits
from torch import nn

from tune_speed.experiments.profiling import rates
from tune_speed.experiments.profiling.pipeline import (
    count_flop,
    moved_bytes,
    open_pipeline,
    saved_bytes,
)
from tune_speed.experiments.profiling.profile import bounds_of, roofline
from tune_speed.experiments.profiling.result import DeviceRates, Phase, StepTimes

FLOAT_BYTES = 4
RATES = DeviceRates(matrix_tflop_per_s={"fp32": 2.0}, memory_gb_per_s=500.0)


@pytest.mark.parametrize(
    ("flop", "binding", "least_s"), [(6e12, "compute", 3.0), (1e12, "memory", 1.0)]
)
def test_bounds_are_those_of_the_closed_form(flop: float, binding: str, least_s: float) -> None:
    found = roofline(flop, 5e11, 2, 500, time_s=4.0)
    bounds_ms = (found.compute_bound_ms, found.memory_bound_ms)
    assert bounds_ms == pytest.approx((flop / 2e9, 1000.0))
    assert found.binding == binding and found.roof_frac * 4.0 == pytest.approx(least_s)
    assert found.achieved_tflop_per_s == pytest.approx(flop / 4e12)
    assert found.peak_frac == pytest.approx(flop / 8e12)


def bounds(flop: Any, **times: float) -> dict[str, Any]:
    figures = StepTimes(num_steps=1, num_launches=1, profiled_step_ms=100.0, **{**TIMES, **times})
    moved: dict[Phase, int] = {
        "images": 10**6,
        "forward": 10**9,
        "backward": 10**9,
        "optimizer": 10**7,
    }
    return bounds_of(flop, moved, figures, RATES, "fp32")


def test_each_phase_has_its_own_bounds_and_the_step_those_of_all() -> None:
    found = bounds({"forward": 1e10, "backward": 2e10})
    assert {*found["phase_bounds"]} == {"images", "forward", "backward", "optimizer"}
    assert found["phase_bounds"]["backward"].achieved_tflop_per_s == pytest.approx(
        2e10 / 0.06 / 1e12
    )
    # 6 ms as it runs for the update's 10 MB at 500 GB/s.
    assert found["phase_bounds"]["optimizer"].roof_frac == pytest.approx(0.02 / 6)
    assert found["bounds"].achieved_tflop_per_s == pytest.approx(3e10 / 0.1 / 1e12)


def test_recorded_step_is_one_phase_and_without_operations_there_are_bounds_of_bytes() -> None:
    zero = {f"{phase}_ms": 0.0 for phase in ("images", "forward", "backward", "optimizer")}
    found = bounds({"forward": 1e10, "backward": 2e10}, forward_backward_ms=99.0, **zero)
    assert found["phase_bounds"]["forward_backward"].gflop == pytest.approx(30.0)
    found = bounds(None)
    assert found["bounds"] is None and {*found["phase_bounds"]} == {"images", "optimizer"}


def test_linear_layer_keeps_its_input_alone_and_shared_memory_counts_once() -> None:
    first, second = nn.Linear(5, 3), nn.Linear(5, 3)
    both, images = nn.ModuleList([first, second]), torch.ones(7, 5)

    def call() -> None:
        (first(images).sum() + second(images).sum()).backward()

    assert saved_bytes(call, both) == 7 * 5 * FLOAT_BYTES


def test_work_of_a_recipe_is_counted_by_hand() -> None:
    recipe = make_recipe(batch_size=8, accumulation_steps=2)
    with open_pipeline(recipe, make_splits(32), seed=0, device=CPU) as pipeline:
        pipeline.take()
        flop, moved = count_flop(pipeline, channels=1), moved_bytes(pipeline)
    # A 3x3 convolution to 4 channels of 6x6 pixels, whose input needs no gradient; then 4 → 3.
    assert flop == {"forward": 16 * 2 * (36 * 36 + 12), "backward": 16 * 2 * (36 * 36 + 2 * 12)}
    p, x = (36 + 4 + 8 + 12 + 3) * FLOAT_BYTES, 8 * 36 * FLOAT_BYTES
    state = moved["optimizer"] - 3 * p
    assert state in (0, 2 * p) and moved["images"] == 2 * (x + x // 4)
    # At least the images, and what the convolution and the norm give, are saved.
    saved = moved["forward"] / 2 - p - x
    assert saved >= x + 8 * 2 * 4 * 36 * FLOAT_BYTES
    assert moved["backward"] == 2 * (2 * p + saved) + p


def test_rates_are_work_over_the_shortest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    long_s = 2 * rates.LONG_S  # The smallest matrices take long enough.
    monkeypatch.setattr(rates, "shortest_s", lambda *_: long_s)
    found = rates.measure_rates(["fp32", "bf16"], device=CPU)
    least = pytest.approx(2 * 256**3 / long_s / 1e12)
    assert found.matrix_tflop_per_s == {"fp32": least, "bf16": least}
    assert found.memory_gb_per_s == pytest.approx(2 * 128 * 1024**2 / long_s / 1e9)


def test_shortest_time_is_that_of_a_call() -> None:
    assert 0 < rates.shortest_s(lambda: torch.ones(8).sum(), CPU) < rates.MEASURE_S
