import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
from helpers.training.tiny import CPU, make_recipe, make_splits
from torch import nn

from tune_speed.experiments.profiling import rates
from tune_speed.experiments.profiling.pipeline import (
    Work,
    count_work,
    open_pipeline,
    parameter_bytes,
    saved_bytes,
    state_bytes,
)
from tune_speed.experiments.profiling.profile import roofline
from tune_speed.experiments.profiling.result import DeviceRates

FLOAT_BYTES = 4


def make_rates(*, tflop_per_s: float, gb_per_s: float, host_gb_per_s: float | None) -> DeviceRates:
    return DeviceRates(
        matrix_tflop_per_s={"fp32": tflop_per_s},
        memory_gb_per_s=gb_per_s,
        host_to_device_gb_per_s=host_gb_per_s,
    )


@pytest.mark.parametrize(
    ("flop", "binding", "least_s", "roof"),
    [(6e12, "compute", 3.0, 2e12), (1e12, "memory", 1.0, 1e12)],
)
def test_bounds_are_those_of_the_closed_form(
    flop: float, binding: str, least_s: float, roof: float
) -> None:
    rates = make_rates(tflop_per_s=2, gb_per_s=500, host_gb_per_s=10)
    found = roofline(flop, 5e11, rates, precision="fp32", host_bytes=1e9, step_s=4.0)
    assert found is not None
    bounds_ms = (found.compute_bound_ms, found.memory_bound_ms, found.host_bound_ms)
    assert bounds_ms == pytest.approx((flop / 2e9, 1000.0, 100.0))
    assert (found.binding, found.roof_frac * 4.0) == (binding, pytest.approx(least_s))
    assert min(2e12, found.intensity_flop_per_byte * 5e11) == pytest.approx(roof)
    assert found.achieved_tflop_per_s == pytest.approx(flop / 4e12)
    # A step that took just its larger bound would be on the roof.
    assert found.achieved_tflop_per_s * 1e12 / found.roof_frac == pytest.approx(roof)


def test_without_a_device_beside_the_host_nothing_is_copied() -> None:
    rates = make_rates(tflop_per_s=1, gb_per_s=1, host_gb_per_s=None)
    found = roofline(1.0, 1.0, rates, precision="fp32", host_bytes=0.0, step_s=1.0)
    assert found is not None and found.host_bound_ms is None


def test_moved_bytes_are_counted_by_hand() -> None:
    step = Work(
        parameters=100,
        gradients=80,
        optimizer_state=60,
        saved=1000,
        images=10,
        num_micro_batches=1,
    )
    # Forward 100 + 10 + 1000, backward 100 + 1000 + 80, update 2 · 100 + 80 + 2 · 60.
    assert step.moved_bytes == 1110 + 1180 + 400
    # The second one also reads the gradients so far.
    assert step._replace(num_micro_batches=2).moved_bytes == 2 * (1110 + 1180) + 80 + 400


def test_linear_layer_keeps_its_input_alone() -> None:
    layer, images = nn.Linear(5, 3), torch.ones(7, 5)
    kept = saved_bytes(lambda: layer(images).sum().backward(), layer)
    assert kept == 7 * 5 * FLOAT_BYTES
    assert parameter_bytes(layer) == (18 * FLOAT_BYTES, 18 * FLOAT_BYTES)


def test_memory_that_two_operations_keep_counts_once() -> None:
    first, second = nn.Linear(5, 3), nn.Linear(5, 3)
    both, images = nn.ModuleList([first, second]), torch.ones(7, 5)

    def call() -> None:
        (first(images).sum() + second(images).sum()).backward()

    assert saved_bytes(call, both) == 7 * 5 * FLOAT_BYTES


def test_frozen_parameters_have_no_gradient() -> None:
    layer = nn.Linear(5, 3)
    layer.bias.requires_grad_(False)
    assert parameter_bytes(layer) == (18 * FLOAT_BYTES, 15 * FLOAT_BYTES)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 18 * FLOAT_BYTES),
        # Two moments, and the number of steps of each of two tensors.
        (lambda p: torch.optim.AdamW(p, lr=0.1), 2 * 18 * FLOAT_BYTES + 2 * FLOAT_BYTES),
    ],
)
def test_optimizer_state_is_that_of_its_rule(
    build: Callable[..., torch.optim.Optimizer], expected: int
) -> None:
    layer = nn.Linear(5, 3)
    optimizer = build(layer.parameters())
    layer(torch.ones(1, 5)).sum().backward()
    assert state_bytes(optimizer) == 0
    optimizer.step()
    assert state_bytes(optimizer) == expected


def test_work_of_a_recipe_is_counted_by_hand() -> None:
    recipe = make_recipe(batch_size=8, accumulation_steps=2)
    splits = make_splits(32)
    opened = open_pipeline(recipe, splits, seed=0, device=CPU, before_step=lambda: None)
    with opened as pipeline:
        pipeline.take()
        work = count_work(pipeline, recipe, splits, device=CPU)
    # A 3x3 convolution to 4 channels of 6x6 pixels, whose input needs no gradient; then 4 → 3.
    assert work.flop == 16 * 2 * (2 * 36 * 9 * 4 + 3 * 4 * 3)
    assert work.parameters == (36 + 4 + 8 + 12 + 3) * FLOAT_BYTES
    assert work.images == 8 * 36 * FLOAT_BYTES
    assert work.num_micro_batches == 2
    # At least the images, and what the convolution and the norm give.
    assert work.saved >= 8 * (36 + 2 * 4 * 36) * FLOAT_BYTES


def timed_by(seconds: float) -> rates.Timed:
    """Returns what times calls by a clock that is `seconds` further at each look."""
    ticks = itertools.count()
    now = lambda: next(ticks) * seconds  # noqa: E731
    return partial(rates.shortest, synchronize=lambda: None, now=now)


def test_rates_are_work_over_the_shortest_time() -> None:
    long_s = 2 * rates.LONG_S  # The smallest matrices take long enough.
    found = rates.matrix_rate(torch.float32, CPU, timed_by(long_s))
    assert found == pytest.approx(2 * 256**3 / long_s)
    found = rates.memory_rate(CPU, timed_by(0.5))
    assert found == pytest.approx(2 * 128 * 1024**2 / 0.5)
    found = rates.host_rate(CPU, False, timed_by(0.5))
    assert found == pytest.approx(64 * 1024**2 / 0.5)
