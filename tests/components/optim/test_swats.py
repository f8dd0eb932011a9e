import copy

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.optimizers import Swats
from tune_speed.components.optim.torch.swats import NOT_SWITCHED, Criterion, next_switch
from tune_speed.components.schedules.base import Factors

GRADIENT = torch.tensor([0.5, -2.0, 1.0, 0.25])


def one_weight(value=0.0, dtype=torch.float32):
    model = nn.Linear(4, 1, bias=False, dtype=dtype)
    nn.init.constant_(model.weight, value)
    return model


def built(model, **fields):
    return Swats(lr=1e-3, **fields).build(model, effective_batch_size=1, fused=False)


def push(model, optimizer, gradient=GRADIENT):
    model.weight.grad = gradient.to(model.weight.dtype).clone()[None]
    optimizer.step()


def quadratic_gradients(num_steps):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(num_steps, 4, generator=generator, dtype=torch.float64) + 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
def test_constant_gradient_switches_at_the_second_step_at_the_rate_that_adam_amounts_to(
    dtype, tolerance
):
    model = one_weight(dtype=dtype)
    optimizer = built(model, switch_tolerance=tolerance)
    push(model, optimizer)
    assert optimizer.switch["switch_step"] is None
    push(model, optimizer)
    assert optimizer.switch["switch_step"] == 2
    # alpha * d / ||g||_1
    assert optimizer.switch["rate"] == pytest.approx(1e-3 * 4 / 3.75, rel=1e-5)
    assert optimizer.switch["rate"] == pytest.approx(0.00106667, abs=5e-9)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("fused", [False, True])
def test_before_the_switch_the_steps_are_those_of_adam(decay, fused):
    ours, theirs = one_weight(1.0), one_weight(1.0)
    config = Swats(lr=1e-3, weight_decay=decay, switch_tolerance=1e-12)
    optimizer = config.build(ours, effective_batch_size=1, fused=fused)
    adam = torch.optim.Adam(
        theirs.parameters(), lr=1e-3, eps=1e-9, weight_decay=decay, fused=fused or None
    )
    for gradient in quadratic_gradients(50):
        push(ours, optimizer, gradient)
        push(theirs, adam, gradient)
    assert optimizer.switch["switch_step"] is None
    assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize("fused", [False, True])
def test_after_the_switch_the_steps_are_those_of_sgd_from_an_empty_buffer(fused):
    ours = one_weight(1.0)
    config = Swats(lr=1e-3, weight_decay=0.1, switch_at_step=3)
    optimizer = config.build(ours, effective_batch_size=1, fused=fused)
    gradients = quadratic_gradients(10)
    for gradient in gradients[:3]:
        push(ours, optimizer, gradient)
    theirs = copy.deepcopy(ours)
    rate = 0.1 * optimizer.switch["rate"]
    sgd = torch.optim.SGD(theirs.parameters(), lr=rate, momentum=0.9, weight_decay=0.1)
    for gradient in gradients[3:]:
        push(ours, optimizer, gradient)
        push(theirs, sgd, gradient)
    assert optimizer.switch["switch_step"] == 3
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-6, atol=0)


def ratios_by_hand(gradients, *, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-9):
    mean = square = average = 0.0
    for k, g in enumerate(np.asarray(gradients), start=1):
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g**2
        root = np.sqrt(square / (1 - beta2**k))
        p = -lr * mean / (1 - beta1**k) / (root + eps)
        ratio = p @ p / -(p @ g)
        average = beta2 * average + (1 - beta2) * ratio
        yield average / (1 - beta2**k), ratio


def test_the_switch_is_where_the_formula_puts_it_in_float64():
    gradients, tolerance = quadratic_gradients(2000), 1e-2
    expected = next(
        (k, mean)
        for k, (mean, ratio) in enumerate(ratios_by_hand(gradients), start=1)
        if k > 1 and mean > 0 and abs(mean - ratio) < tolerance * mean
    )
    model = one_weight(dtype=torch.float64)
    optimizer = built(model, switch_tolerance=tolerance)
    for gradient in gradients:
        push(model, optimizer, gradient)
    assert expected[0] > 10
    assert optimizer.switch["switch_step"] == expected[0]
    assert optimizer.switch["rate"] == pytest.approx(expected[1], rel=1e-9)


@pytest.mark.parametrize("steps_in_row", [2, 4])
def test_the_switch_waits_for_several_steps_in_a_row_and_its_figures_are_by_hand(steps_in_row):
    gradients, tolerance = quadratic_gradients(4000), 0.2
    by_hand = list(ratios_by_hand(gradients))
    passed = [k > 0 and abs(m - r) < tolerance * m for k, (m, r) in enumerate(by_hand)]
    expected = next(
        k for k in range(len(passed)) if all(passed[max(0, k - steps_in_row + 1) : k + 1])
    )
    first = passed.index(True)
    assert first < expected, "one step must pass by chance before"
    model = one_weight(dtype=torch.float64)
    optimizer = built(model, switch_tolerance=tolerance, switch_steps_in_row=steps_in_row)
    assert optimizer.figures() == {}
    for gradient in gradients:
        push(model, optimizer, gradient)
    ratios = np.array([ratio for _, ratio in by_hand[: expected + 1]])
    weights = 0.999 ** np.arange(expected, -1, -1)
    mean = np.average(ratios, weights=weights)
    spread = np.sqrt(np.average((ratios - mean) ** 2, weights=weights)) / mean
    assert optimizer.figures() == pytest.approx(
        {"swats_rate": mean, "swats_spread": spread, "swats_switch_step": expected + 1}, rel=1e-6
    )


def test_one_criterion_looks_at_all_weights_together():
    whole = one_weight(dtype=torch.float64)
    parts = nn.ParameterList(torch.zeros(2, 1, dtype=torch.float64) for _ in range(2))
    one = built(whole, switch_at_step=5)
    two = built(parts, switch_at_step=5)
    for gradient in quadratic_gradients(5):
        push(whole, one, gradient)
        for part, piece in zip(parts, gradient.split(2), strict=True):
            part.grad = piece[:, None].clone()
        two.step()
    assert two.switch["rate"] == pytest.approx(one.switch["rate"], rel=1e-12)


def test_a_forced_switch_waits_for_a_positive_rate():
    criterion = Criterion(tolerance=1e-3, steps_in_row=1, forced_step=2)
    switch = NOT_SWITCHED
    for ratio in (-1.0, -1.0, None):
        switch = next_switch(switch, ratio, criterion, beta2=0.5)
        assert switch["rate"] is None
    switch = next_switch(switch, 4.0, criterion, beta2=0.5)
    # (0.5^3 * -1 + 0.5^2 * -1 + 0.5 * 4) / (1 - 0.5^3), the undefined step left out
    assert switch["rate"] == pytest.approx((-0.125 - 0.25 + 2.0) / 0.875)
    assert (switch["switch_step"], switch["num_steps"], switch["num_ratios"]) == (4, 4, 3)


def test_a_steady_negative_rate_never_switches():
    switch = NOT_SWITCHED
    for _ in range(5):
        switch = next_switch(switch, -1.0, Criterion(1e-2, 1, None), beta2=0.9)
    assert switch["switch_step"] is None


def test_the_schedules_factor_is_no_part_of_the_rate_that_is_found():
    model = one_weight(dtype=torch.float64)
    optimizer = built(model)
    for factor in (0.1, 0.7):
        set_rates(optimizer, Factors(lr=factor, momentum=None))
        push(model, optimizer)
    rate = 1e-3 * 4 / 3.75
    assert optimizer.switch["rate"] == pytest.approx(rate, rel=1e-6)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.7 * rate, rel=1e-6)
    set_rates(optimizer, Factors(lr=0.5, momentum=None))
    before = model.weight.detach().clone()
    push(model, optimizer)
    expected = before - 0.1 * 0.5 * rate * GRADIENT
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-6, atol=0)


def test_the_switch_is_part_of_the_state_and_survives_a_file(tmp_path):
    model = one_weight()
    optimizer = built(model, switch_at_step=3)
    for gradient in quadratic_gradients(5):
        push(model, optimizer, gradient)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    copied = copy.deepcopy(model)
    resumed = built(copied, switch_at_step=3)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert resumed.switch == optimizer.switch
    assert resumed.switch["switch_step"] == 3
    push(model, optimizer)
    push(copied, resumed)
    assert torch.equal(copied.weight, model.weight)


def test_adams_memory_is_given_back_at_the_switch():
    model = one_weight()
    optimizer = built(model, switch_at_step=1)
    push(model, optimizer)
    push(model, optimizer)
    assert optimizer.state[model.weight].keys() == {"momentum_buffer"}


@pytest.mark.parametrize(
    ("field", "value"), [("switch_tolerance", 0.0), ("switch_at_step", 0), ("beta1", 1.0)]
)
def test_settings_that_mean_nothing_are_refused(field, value):
    with pytest.raises(ValidationError, match=field):
        Swats(lr=1e-3, **{field: value})
