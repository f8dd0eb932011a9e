import numpy as np
import pytest
import timm
import torch
from pydantic import ValidationError
from torch import nn

from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.optimizers import Adam, AdamW, Sgd
from tune_speed.components.schedules.base import Factors

LR, DECAY, BETA1, BETA2, EPS = 0.1, 0.05, 0.8, 0.95, 1e-3
GRADIENTS = np.array([[1.0, -2.0], [0.5, 0.25], [-3.0, 1.0]])


def steps_by_hand(weight):
    mean, square = np.zeros_like(weight), np.zeros_like(weight)
    for t, raw in enumerate(GRADIENTS, start=1):
        gradient = raw + DECAY * weight
        mean = BETA1 * mean + (1 - BETA1) * gradient
        square = BETA2 * square + (1 - BETA2) * gradient**2
        root = np.sqrt(square / (1 - BETA2**t))
        weight = weight - LR * mean / (1 - BETA1**t) / (root + EPS)
    return weight


def test_adam_equals_the_formula_with_coupled_decay_in_float64():
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    start = model.weight.detach().numpy()[0].copy()
    config = Adam(lr=LR, weight_decay=DECAY, beta1=BETA1, beta2=BETA2, eps=EPS)
    optimizer = config.build(model, effective_batch_size=1, fused=False)
    for gradient in GRADIENTS:
        model.weight.grad = torch.tensor(gradient)[None]
        optimizer.step()
    np.testing.assert_allclose(model.weight.detach().numpy()[0], steps_by_hand(start), rtol=1e-12)


def test_adamw_takes_the_steps_of_torch():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 3), nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    config = AdamW(lr=0.02, weight_decay=0.1, beta1=0.85, beta2=0.97, eps=1e-6)
    config = config.model_copy(update={"decay_norms_and_biases": True})
    optimizers = [
        config.build(ours, effective_batch_size=64, fused=False),
        torch.optim.AdamW(
            theirs.parameters(), lr=0.02, weight_decay=0.1, betas=(0.85, 0.97), eps=1e-6
        ),
    ]
    for step in range(5):
        inputs = torch.full((4, 5), float(step))
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=0, atol=0)
    torch.testing.assert_close(ours.bias, theirs.bias, rtol=0, atol=0)


LR_SGD, DECAY_SGD, MOMENTUM = 0.1, 0.05, 0.9
GRADIENTS_SGD = np.array([[1.0, -2.0], [0.5, 0.25], [-3.0, 1.0]])


def steps_by_hand_of_sgd(weight, *, nesterov, decoupled):
    buffer = np.zeros_like(weight)
    for gradient in GRADIENTS_SGD:
        if decoupled:
            weight = weight - LR_SGD * DECAY_SGD * weight
        else:
            gradient = gradient + DECAY_SGD * weight
        buffer = MOMENTUM * buffer + gradient
        weight = weight - LR_SGD * (gradient + MOMENTUM * buffer if nesterov else buffer)
    return weight


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("decoupled", [True, False])
def test_sgd_equals_the_formula_in_float64(nesterov, decoupled):
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    start = model.weight.detach().numpy()[0].copy()
    config = Sgd(
        lr=LR_SGD,
        momentum=MOMENTUM,
        weight_decay=DECAY_SGD,
        nesterov=nesterov,
        decoupled_weight_decay=decoupled,
    )
    optimizer = config.build(model, effective_batch_size=1, fused=False)
    for gradient in GRADIENTS_SGD:
        model.weight.grad = torch.tensor(gradient)[None]
        optimizer.step()
    expected = steps_by_hand_of_sgd(start, nesterov=nesterov, decoupled=decoupled)
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
    config = Sgd(lr=LR_SGD, momentum=0.0, nesterov=False)
    optimizer = config.build(model, effective_batch_size=1, fused=True)
    for layers in (model[:1], model):
        set_rates(optimizer, Factors(lr=1.0, momentum=MOMENTUM))
        layers(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(optimizer.state) == 4


def optimizer_with(**fields):
    group = {"params": [torch.nn.Parameter(torch.zeros(1))], "base_lr": 0.5, **fields}
    return torch.optim.Optimizer([group], {"lr": 0.1})


def test_the_momentum_goes_to_where_the_group_has_it():
    factors = Factors(lr=0.5, momentum=0.7)
    for fields, expected in (
        ({"momentum": 0.9}, {"momentum": 0.7}),
        ({"betas": (0.9, 0.99)}, {"betas": (0.7, 0.99)}),
        ({}, {}),
    ):
        (group,) = (optimizer := optimizer_with(**fields)).param_groups
        set_rates(optimizer, factors)
        assert group["lr"] == 0.25
        assert {key: group[key] for key in ("momentum", "betas") if key in group} == expected


@pytest.mark.parametrize("kind", [Sgd, Adam, AdamW])
def test_layers_have_rates_of_their_own_from_the_end(kind):
    """The recipe of Nokhwal et al. for EfficientNet: 0.1, a fifth before the classifier, 1."""
    model = timm.create_model("efficientnet_b0", num_classes=10)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    config = kind(lr=0.01, weight_decay=1e-3, lr_scales=(0.1, 0.2, 1.0))
    optimizer = config.build(model, effective_batch_size=1, fused=False)
    set_rates(optimizer, Factors(lr=0.5, momentum=None))
    rates = {names[id(p)]: g["lr"] for g in optimizer.param_groups for p in g["params"]}
    assert set(rates) == set(names.values())
    for name, rate in rates.items():
        part = name.split(".")[0]
        scale = {"classifier": 1.0, "conv_head": 0.2, "bn2": 0.2}.get(part, 0.1)
        assert rate == pytest.approx(0.005 * scale), name
    decays = {names[id(p)]: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert all(
        (decay > 0) == name.endswith("weight") for name, decay in decays.items() if "bn" not in name
    )


def test_more_scales_than_layers_leave_the_first_ones_out():
    model = nn.Linear(3, 2)
    (group, biases) = Sgd(lr=1.0, lr_scales=(9.0, 0.5)).groups(model, 1)
    assert (group["lr"], biases["base_lr"]) == (0.5, 0.5)
    assert len(Sgd(lr=1.0).groups(model, 1)) == 2
