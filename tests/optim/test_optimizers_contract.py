import copy

import pytest
import torch
from torch import nn

from tune_speed.config import Component
from tune_speed.optim import OPTIMIZERS, set_rates
from tune_speed.schedules import Factors

CASES = {name: kind(lr=0.05) for name, kind in OPTIMIZERS.items()}
CASES["sgdw"] = OPTIMIZERS["sgd"](lr=0.05, decoupled_weight_decay=True)
NAMES = sorted(CASES)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 2))


def descend(model, optimizer, num_steps):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(8, 2, 5, 5, generator=generator)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(images).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_optimizer_config_round_trips_through_json(name):
    config = CASES[name]
    assert type(config).model_validate_json(config.model_dump_json()) == config
    component = Component(OPTIMIZERS)
    read, fields = component.split(component.join(config))
    assert OPTIMIZERS[read](**fields) == config


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_and_field_is_described_with_its_source(name):
    assert "Source:" in (OPTIMIZERS[name].__doc__ or "")
    assert all(field.description for field in OPTIMIZERS[name].model_fields.values())


@pytest.mark.parametrize("name", NAMES)
def test_optimizer_steps_lower_a_quadratic(name):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    optimizer = CASES[name].build(model, effective_batch_size=1, fused=False)
    for _ in range(100):
        optimizer.zero_grad()
        (0.5 * (model.weight - 1.0).square()).sum().backward()
        optimizer.step()
    assert abs(model.weight.item() - 1.0) < 0.5


@pytest.mark.parametrize("name", NAMES)
def test_optimizer_state_round_trips(name):
    model = network()
    optimizer = CASES[name].build(model, effective_batch_size=1, fused=False)
    descend(model, optimizer, 3)
    copied = copy.deepcopy(model)
    resumed = CASES[name].build(copied, effective_batch_size=1, fused=False)
    # Loading keeps the very tensors that it is given; a file would hold copies.
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected, actual = descend(model, optimizer, 3), descend(copied, resumed, 3)
    assert all(map(torch.equal, expected, actual))
    assert [g["base_lr"] for g in resumed.param_groups] == [0.05, 0.05]


@pytest.mark.parametrize("name", NAMES)
def test_fused_kernels_take_the_same_steps(name):
    plain, fused = network(), network()
    default = CASES[name].build(plain, effective_batch_size=1, fused=False)
    faster = CASES[name].build(fused, effective_batch_size=1, fused=True)
    for expected, actual in zip(descend(plain, default, 3), descend(fused, faster, 3), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_fused_kernels_are_used_on_request_and_else_the_choice_is_torchs(name):
    build = CASES[name].build
    assert build(network(), effective_batch_size=1, fused=True).defaults["fused"] is True
    assert build(network(), effective_batch_size=1, fused=False).defaults["fused"] is None


@pytest.mark.parametrize("name", NAMES)
def test_zero_gradients_decay_weights_but_no_norms_or_biases(name):
    model = network()
    nn.init.ones_(model[0].bias)
    config = CASES[name].model_copy(update={"weight_decay": 0.1})
    optimizer = config.build(model, effective_batch_size=1, fused=False)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    changed = {key for key, p in model.named_parameters() if not torch.equal(p, before[key])}
    assert changed == {"1.weight", "3.weight"}


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_biases_are_decayed_where_asked(name):
    config = CASES[name].model_copy(update={"weight_decay": 0.1, "decay_norms_and_biases": True})
    optimizer = config.build(network(), effective_batch_size=1, fused=False)
    (group,) = optimizer.param_groups
    assert len(group["params"]) == 6
    assert group["weight_decay"] == 0.1


@pytest.mark.parametrize("name", NAMES)
def test_frozen_parameters_are_left_out(name):
    model = network()
    model[0].requires_grad_(False)
    optimizer = CASES[name].build(model, effective_batch_size=1, fused=False)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("lr_per_examples", "expected"), [(None, 0.05), (1024, 0.05 * 384 / 1024), (128, 0.15)]
)
def test_rate_follows_from_the_effective_batch_size(name, lr_per_examples, expected):
    config = CASES[name].model_copy(update={"lr_per_examples": lr_per_examples})
    optimizer = config.build(network(), effective_batch_size=384, fused=False)
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(expected)
        assert group["base_lr"] == group["lr"]


@pytest.mark.parametrize("name", NAMES)
def test_set_rates_scales_the_base_rate_and_replaces_the_momentum(name):
    optimizer = CASES[name].build(network(), effective_batch_size=1, fused=False)
    set_rates(optimizer, Factors(lr=0.5, momentum=0.7))
    set_rates(optimizer, Factors(lr=0.2, momentum=None))
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(0.05 * 0.2)
        assert group["betas"] == (0.7, 0.999) if "betas" in group else group["momentum"] == 0.7


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("field", "value"),
    [("lr", 0.0), ("lr", float("nan")), ("lr_per_examples", 0), ("weight_decay", -1.0), ("lrr", 1)],
)
def test_impossible_settings_are_refused(name, field, value):
    fields = {"lr": 0.1, field: value}
    with pytest.raises(ValueError, match=field):
        type(CASES[name])(**fields)
