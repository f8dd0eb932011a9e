import numpy as np
import pytest
import timm
import torch
from pydantic import ValidationError
from torch import nn

from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.optimizers import Adam, AdamW, Sgd
from tune_speed.components.schedules.base import Factors
from tune_speed.core.config import Component, descriptions
from tune_speed.testing import check_optimizer

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


CASES = {name: kind(lr=0.05) for name, kind in OPTIMIZERS.items()}
CASES["sgdw"] = OPTIMIZERS["sgd"](lr=0.05, decoupled_weight_decay=True)
CASES["swats switching"] = OPTIMIZERS["swats"](lr=0.05, switch_at_step=2)
# `lr` is a factor on a rate that it finds by itself.
CASES["yellowfin"] = OPTIMIZERS["yellowfin"](lr=1.0)
CASES["yellowfin closed"] = OPTIMIZERS["yellowfin"](lr=1.0, closed_loop=True, staleness=1)
NAMES = sorted(CASES)
# YellowFin's rate is on the device, where fused kernels take none; others have foreach kernels.
FUSED = sorted(
    OPTIMIZERS.keys() - {"yellowfin", "timm", "schedule_free_sgd", "schedule_free_adamw"}
)
# They set the rate, or the momentum, by themselves.
SCHEDULED = sorted(name for name in NAMES if "yellowfin" not in name)


def network():
    torch.manual_seed(0)
    hidden = (nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1))
    layers = (nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), *hidden, nn.Flatten(), nn.Linear(27, 2))
    return nn.Sequential(*layers)


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
    assert set(descriptions(OPTIMIZERS[name])) == set(OPTIMIZERS[name].model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_optimizers_keep_their_contracts(name):
    fields = CASES[name].model_dump(exclude_unset=True)
    check_optimizer(name, type(CASES[name]), fields=fields)


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_are_used_on_request_and_else_the_choice_is_torchs(name):
    build = CASES[name].build
    assert build(network(), effective_batch_size=1, fused=True).defaults["fused"] is True
    assert build(network(), effective_batch_size=1, fused=False).defaults["fused"] is None


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_biases_are_decayed_where_asked(name):
    config = CASES[name].model_copy(update={"weight_decay": 0.1, "decay_norms_and_biases": True})
    optimizer = config.build(network(), effective_batch_size=1, fused=False)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 10
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("lr_per_examples", "ratio"), [(None, 1.0), (1024, 384 / 1024), (128, 3.0)]
)
def test_rate_follows_from_the_effective_batch_size(name, lr_per_examples, ratio):
    config = CASES[name].model_copy(update={"lr_per_examples": lr_per_examples})
    optimizer = config.build(network(), effective_batch_size=384, fused=False)
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(config.lr * ratio)
        assert group["base_lr"] == group["lr"]


@pytest.mark.parametrize("name", SCHEDULED)
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


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_of_zero_leaves_the_weights_alone(name):
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = CASES[name].build(model, effective_batch_size=1, fused=True)
    set_rates(optimizer, Factors(lr=0.0, momentum=0.8))
    assert all(map(torch.equal, descend(model, optimizer, 3), before))


@pytest.mark.parametrize("name", NAMES)
def test_weights_without_a_gradient_are_left_alone_and_rejoin_later(name):
    model = network()
    optimizer = CASES[name].build(model, effective_batch_size=1, fused=True)
    descend(model, optimizer, 3)
    model[2].requires_grad_(False)
    optimizer.zero_grad()
    skipped = [p.detach().clone() for p in model[2].parameters()]
    descend(model, optimizer, 2)
    assert all(map(torch.equal, model[2].parameters(), skipped))
    model[2].requires_grad_(True)
    descend(model, optimizer, 2)
    assert not torch.equal(model[2].weight, skipped[0])
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_scaled_loss_takes_the_same_steps_and_an_overflow_takes_none(name):
    plain, scaled = network(), network()
    expected = CASES[name].build(plain, effective_batch_size=1, fused=True)
    actual = CASES[name].build(scaled, effective_batch_size=1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for scale in (1.0, float("inf"), 1.0):
        for model in (plain, scaled):
            model.zero_grad()
        loss = scale * scaled(torch.ones(2, 2, 5, 5)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(actual)
        scaler.update()
        if scale == 1.0:
            plain(torch.ones(2, 2, 5, 5)).square().mean().backward()
            expected.step()
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_channels_last_takes_the_same_steps(name):
    plain, permuted = network(), network().to(memory_format=torch.channels_last)
    expected = CASES[name].build(plain, effective_batch_size=1, fused=True)
    actual = CASES[name].build(permuted, effective_batch_size=1, fused=True)
    pairs = zip(descend(permuted, actual, 3), descend(plain, expected, 3), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.fixture
def no_reading(monkeypatch):
    """Makes it an error that the host reads a tensor's value, for which it waits on a GPU."""

    def refuse(self, *_):
        raise InterruptedError("the host waits for the device")

    def start():
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"):
            monkeypatch.setattr(torch.Tensor, name, refuse)

    return start


# SGDW is timm's; of its LAMB the host counts the steps, which are on the CPU.
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"swats", "sgdw", "timm"}))
def test_no_step_waits_for_the_device(name, no_reading):
    model = network()
    optimizer = CASES[name].build(model, effective_batch_size=1, fused=True)
    descend(model, optimizer, 4)
    no_reading()
    optimizer.step()


def test_swats_waits_before_its_switch_only(no_reading):
    model = network()
    config = CASES["swats"].model_copy(update={"switch_tolerance": 1e-12})
    optimizer = config.build(model, effective_batch_size=1, fused=True)
    descend(model, optimizer, 4)
    no_reading()
    with pytest.raises(InterruptedError, match="waits"):
        optimizer.step()
