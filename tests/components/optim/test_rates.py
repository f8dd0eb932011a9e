import pytest
import timm
import torch
from torch import nn

from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.optimizers import Adam, AdamW, Sgd
from tune_speed.components.schedules.base import Factors


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
