import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.schedules.base import Factors

LR, DECAY, MOMENTUM = 0.1, 0.05, 0.9
GRADIENTS = np.array([[1.0, -2.0], [0.5, 0.25], [-3.0, 1.0]])


def steps_by_hand(weight, *, nesterov, decoupled):
    buffer = np.zeros_like(weight)
    for gradient in GRADIENTS:
        if decoupled:
            weight = weight - LR * DECAY * weight
        else:
            gradient = gradient + DECAY * weight
        buffer = MOMENTUM * buffer + gradient
        weight = weight - LR * (gradient + MOMENTUM * buffer if nesterov else buffer)
    return weight


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("decoupled", [True, False])
def test_sgd_equals_the_formula_in_float64(nesterov, decoupled):
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    start = model.weight.detach().numpy()[0].copy()
    config = Sgd(
        lr=LR,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        nesterov=nesterov,
        decoupled_weight_decay=decoupled,
    )
    optimizer = config.build(model, effective_batch_size=1, fused=False)
    for gradient in GRADIENTS:
        model.weight.grad = torch.tensor(gradient)[None]
        optimizer.step()
    expected = steps_by_hand(start, nesterov=nesterov, decoupled=decoupled)
    np.testing.assert_allclose(model.weight.detach().numpy()[0], expected, rtol=1e-13)


def test_nesterov_without_momentum_is_refused():
    with pytest.raises(ValidationError, match="`momentum` must be above 0"):
        Sgd(lr=0.1, momentum=0.0)
    assert Sgd(lr=0.1, momentum=0.0, nesterov=False).momentum == 0


@pytest.mark.parametrize("decoupled", [True, False])
def test_norms_and_biases_have_their_own_rate_where_it_is_given(decoupled):
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Linear(2, 2))
    config = Sgd(
        lr=0.1,
        bias_lr=6.4,
        lr_per_examples=100,
        weight_decay=0.5,
        decay_norms_and_biases=True,
        decoupled_weight_decay=decoupled,
    )
    optimizer = config.build(model, effective_batch_size=200, fused=False)
    rates = {id(p): group["base_lr"] for group in optimizer.param_groups for p in group["params"]}
    expected = {id(p): 0.2 if p.ndim > 1 else 12.8 for p in model.parameters()}
    assert rates == pytest.approx(expected)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.5}


def test_without_a_rate_for_biases_groups_are_as_ever():
    model = nn.Linear(2, 2)
    config = Sgd(lr=0.1, decay_norms_and_biases=True)
    [group] = config.build(model, effective_batch_size=1, fused=False).param_groups
    assert len(group["params"]) == 2 and group["lr"] == 0.1


def test_a_schedule_gives_momentum_to_weights_whose_first_gradient_comes_late():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    config = Sgd(lr=LR, momentum=0.0, nesterov=False)
    optimizer = config.build(model, effective_batch_size=1, fused=True)
    for layers in (model[:1], model):
        set_rates(optimizer, Factors(lr=1.0, momentum=MOMENTUM))
        layers(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(optimizer.state) == 4
