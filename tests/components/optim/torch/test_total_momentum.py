import numpy as np
import pytest
import torch

from tune_speed.components.optim.torch.yellowfin import next_correction, total_momentum

CURVATURES = torch.linspace(0.2, 1.0, 7, dtype=torch.float64)
RATE = 0.1


def scalar(value):
    return torch.tensor(value, dtype=torch.float64)


def stale_run(num_steps, *, staleness, momentum_of):
    """Returns the momenta applied and measured in heavy-ball steps with late gradients.

    `momentum_of(step, measured)` gives the momentum of the next step.
    """
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
