import copy
import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.datasets import load_digits
from torch import nn

from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.optimizers import YellowFin
from tune_speed.components.optim.torch.yellowfin import (
    Landscape,
    new_record,
    next_correction,
    one_minus_root,
    single_step,
    total_momentum,
)
from tune_speed.components.schedules.base import Factors

CLOSED = YellowFin.model_construct(closed_loop=True)
CONSTANT = torch.tensor([0.5, -2.0, 1.0, 0.25])


def one_weight(size, dtype=torch.float32):
    model = nn.Linear(size, 1, bias=False, dtype=dtype)
    nn.init.zeros_(model.weight)
    return model


def push(model, optimizer, gradients):
    for gradient in gradients:
        model.weight.grad = gradient.to(model.weight.dtype).clone()[None]
        optimizer.step()
    return {name: np.asarray(value) for name, value in optimizer.tuner.items()}


def built(model, **fields):
    # Not validated: a loop without staleness is refused, as it does nothing.
    config = YellowFin.model_construct(**fields)
    return config.build(model, effective_batch_size=1, fused=False)


def by_hand(gradients, *, clip, beta=0.999, window=20, eps=1e-6):
    """Yields momentum, rate, landscape and weights, step by step in float64, with Vieta's root."""
    log_low = log_high = square_avg = norm_avg = distance_avg = high = 0.0
    mean, buffer, weight, seen = 0.0, 0.0, 0.0, []
    for t, g in enumerate(np.asarray(gradients, np.float64)):
        bound = high
        if clip and t > 1:
            g = g * min(1.0, math.sqrt(100 * bound) / np.linalg.norm(g))
        n, z = g @ g, 1 - beta ** (t + 1)
        seen = [*seen, n][-window:]
        log_low = beta * log_low + (1 - beta) * math.log(min(seen) + eps)
        log_high = beta * log_high + (1 - beta) * math.log(max(seen) + eps)
        low, high = math.exp(log_low / z), math.exp(log_high / z)
        square_avg = beta * square_avg + (1 - beta) * n
        norm_avg = beta * norm_avg + (1 - beta) * math.sqrt(n)
        mean = beta * mean + (1 - beta) * g
        variance = max(square_avg / z - (mean / z) @ (mean / z), eps)
        distance_avg = beta * distance_avg + (1 - beta) * norm_avg / (square_avg + eps)
        distance = distance_avg / z
        p = distance**2 * low**2 / (2 * variance)
        w3 = (-math.sqrt(p**2 + 4 * p**3 / 27) - p) / 2
        w = math.copysign(abs(w3) ** (1 / 3), w3)
        root_r = math.sqrt(high / low)
        root = max(1 + w - p / (3 * w), (root_r - 1) / (root_r + 1))
        momentum, rate = root**2, (1 - root) ** 2 / low * min(1, (t + 1) / (10 * window))
        if t == 0:
            momentum, rate = 0.0, 1e-4
        if clip and t > 1:
            rate = min(rate, 100 / math.sqrt(n))
            g = g * (math.sqrt(bound / n) if n >= bound else 1.0)
        buffer = momentum * buffer + g
        weight = weight - rate * buffer
        yield momentum, rate, low, high, variance, distance, weight


def noisy_gradients(num_steps):
    generator = torch.Generator().manual_seed(5)
    gradients = torch.randn(num_steps, 6, generator=generator, dtype=torch.float64) + 0.7
    gradients[num_steps // 2] *= 300
    return gradients


def test_a_ramp_gives_the_figures_of_the_reference_code():
    model = one_weight(3)
    ramp = torch.arange(1.0, 51.0)[:, None] * torch.ones(3)
    found = push(model, built(model, clip=False), ramp)
    low, high = np.exp(found["averages"][:2] / (1 - 0.999**50))
    assert low == pytest.approx(70.850, rel=1e-5)
    assert high == pytest.approx(1165.34, rel=1e-5)
    assert found["distance"] / (1 - 0.999**50) == pytest.approx(0.0665120, rel=1e-6)
    # Those of the reference carry its epsilons, about 1e-5.
    assert found["momentum"] == pytest.approx(0.580130, rel=1e-4)
    assert found["rate"] == pytest.approx(2.00439e-4, rel=1e-4)
    *_, (*_, variance, _, _) = by_hand(ramp, clip=False)
    assert variance == pytest.approx(624.671, rel=1e-5)


@pytest.mark.parametrize("clip", [False, True])
def test_a_constant_gradient_is_known_after_a_while(clip):
    model = one_weight(4)
    found = push(model, built(model, clip=clip), CONSTANT.repeat(300, 1))
    debias = 1 - 0.999**300
    np.testing.assert_allclose(np.exp(found["averages"][:2] / debias), 5.3125, rtol=1e-5)
    assert found["distance"] / debias == pytest.approx(0.43386, rel=1e-4)
    assert found["momentum"] < 1e-6
    assert found["rate"] == pytest.approx(0.1882, rel=1e-3)


@pytest.mark.parametrize("clip", [False, True])
def test_weights_momentum_and_rate_equal_the_formula_in_float64(clip):
    gradients = noisy_gradients(60)
    model = one_weight(6, torch.float64)
    optimizer = built(model, clip=clip)
    for gradient, expected in zip(gradients, by_hand(gradients, clip=clip), strict=True):
        found = push(model, optimizer, [gradient])
        assert found["momentum"] == pytest.approx(expected[0], rel=1e-6, abs=1e-9)
        assert found["rate"] == pytest.approx(expected[1], rel=1e-6)
        np.testing.assert_allclose(model.weight.detach().numpy()[0], expected[-1], rtol=1e-6)


def test_clipping_takes_the_force_from_a_single_huge_gradient():
    last = {}
    for clip in (False, True):
        model = one_weight(6, torch.float64)
        optimizer = built(model, clip=clip)
        push(model, optimizer, noisy_gradients(60)[:30])
        before = model.weight.detach().clone()
        push(model, optimizer, noisy_gradients(60)[30:31])
        last[clip] = float((model.weight.detach() - before).norm())
    assert last[True] < 0.3 * last[False]


def test_the_rate_starts_slowly_over_ten_windows():
    rates = {}
    for window in (2, 20):
        model = one_weight(4)
        optimizer = built(model, window=window)
        rates[window] = [float(push(model, optimizer, [CONSTANT])["rate"]) for _ in range(25)]
    assert rates[20][0] == rates[2][0] == pytest.approx(1e-4)
    assert rates[20][9] == pytest.approx(0.1882 * 10 / 200, rel=2e-3)
    assert rates[2][9] == pytest.approx(0.1882 * 10 / 20, rel=2e-3)
    assert rates[2][24] == pytest.approx(0.1882, rel=2e-3)


def test_lr_and_schedule_are_factors_on_the_rate_and_the_schedules_momentum_has_no_effect():
    plain, scaled = one_weight(4), one_weight(4)
    one, other = built(plain), built(scaled, lr=0.5)
    set_rates(other, Factors(lr=0.2, momentum=0.85))
    expected = push(plain, one, CONSTANT.repeat(20, 1))
    found = push(scaled, other, CONSTANT.repeat(20, 1))
    assert found["rate"] == pytest.approx(0.1 * expected["rate"])
    assert found["momentum"] == expected["momentum"]
    assert "momentum" not in other.param_groups[0]
    torch.testing.assert_close(scaled.weight, 0.1 * plain.weight, rtol=1e-5, atol=0)


@pytest.mark.parametrize("size", [3, 50])
def test_zero_gradients_leave_everything_finite(size):
    model = one_weight(size)
    optimizer = built(model)
    found = push(model, optimizer, torch.zeros(30, size))
    assert all(np.isfinite(value).all() for value in found.values())
    assert not model.weight.any()
    push(model, optimizer, torch.ones(30, size))
    assert model.weight.isfinite().all()


def digits_run(config, num_steps, *, dtype=torch.float32):
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=dtype), torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(dtype)
    optimizer = config.build(model, effective_batch_size=64, fused=False)
    losses = []
    for step in range(num_steps):
        batch = torch.arange(64 * step, 64 * step + 64) % len(images)
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, optimizer


def test_digits_are_learnt_without_any_setting():
    losses, optimizer = digits_run(YellowFin(), 1000)
    assert losses[0] > 2.2
    assert np.mean(losses[-20:]) < 0.3  # 0.09 to 0.2, by the machine's kernels
    assert optimizer.tuner["momentum"] > 0.9


def test_the_closed_loop_does_nothing_in_synchronous_training():
    open_losses, plain = digits_run(YellowFin(), 60, dtype=torch.float64)
    closed_losses, looped = digits_run(CLOSED, 60, dtype=torch.float64)
    assert plain.tuner["momentum"] > 0.01
    assert abs(float(looped.tuner["correction"])) < 1e-9
    np.testing.assert_allclose(closed_losses, open_losses, rtol=1e-7)


def test_the_closed_loop_lowers_the_momentum_where_others_move_the_weights_too():
    model = one_weight(6, torch.float64)
    optimizer = built(model, closed_loop=True)
    for gradient in noisy_gradients(60):
        before = model.weight.detach().clone()
        push(model, optimizer, [gradient])
        with torch.no_grad():
            model.weight += 0.2 * (model.weight - before)
    assert optimizer.tuner["correction"] < -0.01
    applied = optimizer.tuner["target"] + optimizer.tuner["correction"]
    assert optimizer.tuner["momentum"] == applied


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_late_gradients_are_paired_as_in_algorithm_5(staleness):
    """Each gradient is that of so many steps ago; the correction is the paper's, by hand."""
    curvatures = torch.linspace(0.2, 1.0, 6, dtype=torch.float64)
    model = one_weight(6, torch.float64)
    optimizer = built(model, closed_loop=True, clip=False, staleness=staleness)
    noise = torch.Generator().manual_seed(0)
    xs, rates, correction, gradients = [model.weight.detach()[0].clone()], [], 0.0, []
    for step in range(80):
        gradients.append(curvatures * xs[-1] + torch.randn(6, generator=noise).double() / 10)
        # Algorithm 5 before its step: x(t - s) - x(t - s - 1) and the gradient at x(t - s - 1).
        at = step - staleness - 1
        if at >= 1:
            moves = [(xs[at + k] - xs[at + k + 1]) / rates[at + k] for k in (-1, 0)]
            total = ((moves[1] - gradients[at]) / moves[0]).nanmedian()
            correction += 0.01 * float(optimizer.tuner["target"] - total)
        push(model, optimizer, [gradients[max(0, step - staleness)]])
        if step > staleness + 1:
            assert float(optimizer.tuner["correction"]) == pytest.approx(correction, abs=1e-9)
        rates.append(optimizer.tuner["rate"])
        xs.append(model.weight.detach()[0].clone())
    # Paired with the step that it was applied in, a late gradient shows no momentum but the target.
    assert (abs(correction) > 0.001) == (staleness > 0)


def test_the_tuners_state_survives_a_file(tmp_path):
    model = one_weight(6)
    optimizer = built(model, closed_loop=True)
    push(model, optimizer, noisy_gradients(30))
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    copied = copy.deepcopy(model)
    resumed = built(copied, closed_loop=True)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    push(model, optimizer, noisy_gradients(5))
    push(copied, resumed, noisy_gradients(5))
    assert torch.equal(copied.weight, model.weight)


def test_a_closed_loop_without_staleness_is_refused():
    with pytest.raises(ValidationError, match=r"`closed_loop` must be false where `staleness` is"):
        YellowFin(closed_loop=True)
    assert YellowFin(closed_loop=True, staleness=1).closed_loop


CURVATURES = torch.linspace(0.2, 1.0, 7, dtype=torch.float64)
RATE = 0.1


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def stale_run(num_steps, *, staleness, momentum_of):
    xs = [torch.ones(7, dtype=torch.float64)] * (staleness + 3)
    applied, measured = [], [float("nan")]
    for step in range(num_steps):
        momentum = momentum_of(step, measured[-1])
        late = CURVATURES * xs[-1 - staleness]
        xs.append(xs[-1] + momentum * (xs[-1] - xs[-2]) - RATE * late)
        applied.append(momentum)
        velocity, previous = (xs[-2] - xs[-1]) / RATE, (xs[-3] - xs[-2]) / RATE
        measured.append(float(total_momentum(velocity, previous, CURVATURES * xs[-2])))
    return np.array(applied), np.array(measured[1:])


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
def test_momentum_sgd_shows_the_momentum_that_it_was_given(momentum):
    weight = torch.nn.Parameter(torch.ones(7, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=RATE, momentum=momentum)
    steps = []
    for _ in range(3):
        before = weight.detach().clone()
        weight.grad = CURVATURES * before
        optimizer.step()
        steps.append(((before - weight.detach()) / RATE, weight.grad))
    (previous, _), (velocity, gradient) = steps[1:]
    assert float(total_momentum(velocity, previous, gradient)) == pytest.approx(momentum, abs=1e-9)


def test_it_is_the_papers_fraction_at_a_constant_rate():
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient = CURVATURES * x[1]
    paper = torch.median((x[2] - x[1] + RATE * gradient) / (x[1] - x[0]))
    ours = total_momentum((x[1] - x[2]) / RATE, (x[0] - x[1]) / RATE, gradient)
    assert float(ours) == pytest.approx(float(paper), rel=1e-12)


def test_late_gradients_show_as_more_momentum_than_was_applied():
    for staleness in (1, 3):
        _, measured = stale_run(30, staleness=staleness, momentum_of=lambda *_: 0.3)
        assert (measured[staleness + 2 :] > 0.3 + 0.02 * staleness).all()
    _, measured = stale_run(30, staleness=0, momentum_of=lambda *_: 0.3)
    np.testing.assert_allclose(measured[3:], 0.3, atol=1e-9)


def test_the_loop_lowers_the_momentum_until_the_total_is_the_target():
    target, correction = scalar(0.5), scalar(0.0)

    def controlled(_, measured):
        nonlocal correction
        correction = next_correction(correction, target=target, measured=scalar(measured))
        return float(target + correction)

    applied, measured = stale_run(3000, staleness=2, momentum_of=controlled)
    assert abs(np.mean(measured[-500:]) - 0.5) < 0.02
    assert applied[-1] < 0.45


def test_the_loop_is_the_papers_for_a_fixed_target():
    momentum, correction = 0.4, scalar(-0.1)
    for measured in (0.7, 0.6, 0.65):
        momentum += 0.01 * (0.5 - measured)
        correction = next_correction(correction, target=scalar(0.5), measured=scalar(measured))
    assert float(0.5 + correction) == pytest.approx(momentum, rel=1e-12)


@pytest.mark.parametrize("measured", [float("nan"), float("inf"), -float("inf")])
def test_a_measurement_without_a_value_changes_nothing(measured):
    kept = next_correction(scalar(-0.2), target=scalar(0.5), measured=scalar(measured))
    assert float(kept) == -0.2


def test_coordinates_that_never_move_are_left_out():
    velocity = torch.tensor([0.0, 0.0, 0.0, 3.0])
    previous = torch.tensor([0.0, 0.0, 0.0, 2.0])
    gradient = torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert float(total_momentum(velocity, previous, gradient)) == 1.0


def scalars(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def momentum_and_rate(low, high, variance, distance):
    return [
        float(value) for value in single_step(Landscape(*scalars(low, high, variance, distance)))
    ]


@pytest.mark.parametrize(
    ("variance", "distance", "curvature", "root"),
    [(1.0, 1.0, 1.0, 0.4102454877), (100.0, 0.1, 0.5, 0.97697)],
)
def test_the_cubic_has_the_roots_of_the_sheet(variance, distance, curvature, root):
    p = distance**2 * curvature**2 / (2 * variance)
    x = 1 - float(one_minus_root(*scalars(p)))
    assert x == pytest.approx(root, abs=1e-5 if root > 0.9 else 1e-10)
    assert abs(p * x - (1 - x) ** 3) < 1e-9
    momentum, rate = momentum_and_rate(curvature, curvature, variance, distance)
    assert momentum == pytest.approx(x**2, rel=1e-12)
    assert rate == pytest.approx((1 - x) ** 2 / curvature, rel=1e-12)


@pytest.mark.parametrize("exponent", range(-17, 13, 2))
def test_the_root_keeps_its_digits_for_every_size_of_p(exponent):
    p = 10.0**exponent
    s = float(one_minus_root(*scalars(p)))
    assert 0 < s < 1
    # p (1 - s) = s^3, with 1 - s from numpy's companion matrix in the variable x.
    assert s**3 / p == pytest.approx(1 - s, rel=1e-6, abs=1e-12)
    roots = np.roots([1.0, 0.0, p, -p])
    real = roots[np.abs(roots.imag) < 1e-9 * np.abs(roots)].real
    assert np.min(np.abs(real - s)) < 1e-6 * s


@pytest.mark.parametrize(
    ("variance", "distance", "low"), [(1.0, 1.0, 1.0), (100.0, 0.1, 0.5), (0.01, 2.0, 3.0)]
)
def test_no_point_of_a_grid_is_better_than_the_minimiser(variance, distance, low):
    momentum, rate = momentum_and_rate(low, low, variance, distance)
    grid = np.linspace(0, 1, 100_001) ** 2
    costs = grid * distance**2 + ((1 - np.sqrt(grid)) ** 2 / low) ** 2 * variance
    assert momentum * distance**2 + rate**2 * variance <= costs.min() * (1 + 1e-9)


def test_a_wide_range_of_curvature_sets_a_floor_to_the_momentum():
    momentum, rate = momentum_and_rate(1.0, 81.0, 1e-6, 1.0)
    assert momentum == pytest.approx(0.8**2)
    assert rate == pytest.approx(0.2**2)


def test_vanishing_gradients_give_a_finite_rate_and_a_momentum_below_one():
    momentum, rate = momentum_and_rate(1e-6, 1e-6, 1e-6, 0.0)
    assert 0.99 < momentum < 1
    assert 0 < rate < 1


def test_the_memory_before_the_first_step_is_empty():
    record = new_record(window=7, device=torch.device("cpu"))
    assert record["squared_norms"].shape == (7,)
    assert record["num_steps"] == 0
    assert not record["averages"].any()
