import pytest
import torch
from torch import nn

from tune_speed.components.optim import OPTIMIZERS, set_rates
from tune_speed.components.schedules import Factors
from tune_speed.core.config import Component
from tune_speed.core.descriptions import descriptions
from tune_speed.testing.optimizers import OptimizerContracts

CASES = {name: kind(lr=0.05) for name, kind in OPTIMIZERS.items()}
CASES["sgdw"] = OPTIMIZERS["sgd"](lr=0.05, decoupled_weight_decay=True)
CASES["swats switching"] = OPTIMIZERS["swats"](lr=0.05, switch_at_step=2)
# `lr` is a factor on a rate that it finds by itself.
CASES["yellowfin"] = OPTIMIZERS["yellowfin"](lr=1.0)
CASES["yellowfin closed"] = OPTIMIZERS["yellowfin"](lr=1.0, closed_loop=True, staleness=1)
NAMES = sorted(CASES)
# YellowFin's rate is on the device, where fused kernels take none.
FUSED = sorted(OPTIMIZERS.keys() - {"yellowfin"})
# They set the rate, or the momentum, by themselves.
SCHEDULED = sorted(name for name in NAMES if "yellowfin" not in name)


def contracts(name):
    fields = CASES[name].model_dump(exclude_unset=True)
    return OptimizerContracts(name=name, entry=type(CASES[name]), fields=fields)


def network():
    """Two hidden weights of one shape, between a first and a last one: Muon tells them apart."""
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
def test_optimizer_steps_lower_a_quadratic(name):
    contracts(name).steps_lower_a_quadratic()


@pytest.mark.parametrize("name", NAMES)
def test_optimizer_state_round_trips(name):
    contracts(name).state_round_trips()


@pytest.mark.parametrize("name", NAMES)
def test_fused_kernels_take_the_same_steps(name):
    contracts(name).fused_kernels_take_the_same_steps()


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_are_used_on_request_and_else_the_choice_is_torchs(name):
    build = CASES[name].build
    assert build(network(), effective_batch_size=1, fused=True).defaults["fused"] is True
    assert build(network(), effective_batch_size=1, fused=False).defaults["fused"] is None


@pytest.mark.parametrize("name", NAMES)
def test_zero_gradients_decay_weights_but_no_norms_or_biases(name):
    contracts(name).weight_decay_shrinks_weights_but_no_norms_or_biases()


@pytest.mark.parametrize("name", NAMES)
def test_norms_and_biases_are_decayed_where_asked(name):
    config = CASES[name].model_copy(update={"weight_decay": 0.1, "decay_norms_and_biases": True})
    optimizer = config.build(network(), effective_batch_size=1, fused=False)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 10
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.1}


@pytest.mark.parametrize("name", NAMES)
def test_frozen_parameters_are_left_out(name):
    contracts(name).frozen_weights_are_left_out()


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
    """As while the time of a step is measured."""
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = CASES[name].build(model, effective_batch_size=1, fused=True)
    set_rates(optimizer, Factors(lr=0.0, momentum=0.8))
    assert all(map(torch.equal, descend(model, optimizer, 3), before))


@pytest.mark.parametrize("name", NAMES)
def test_weights_without_a_gradient_are_left_alone_and_rejoin_later(name):
    """As those of a block that stochastic depth skips."""
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


@pytest.mark.parametrize("name", NAMES)
def test_a_closure_computes_the_loss(name):
    contracts(name).a_closure_computes_the_loss()


@pytest.fixture
def no_reading(monkeypatch):
    """Makes it an error that the host reads a tensor's value, for which it waits on a GPU."""

    def refuse(self, *_):
        raise InterruptedError("the host waits for the device")

    def start():
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"):
            monkeypatch.setattr(torch.Tensor, name, refuse)

    return start


# SGDW is timm's.
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"swats", "sgdw"}))
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
