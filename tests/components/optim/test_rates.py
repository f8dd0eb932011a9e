import torch

from tune_speed.components.optim import set_rates
from tune_speed.components.schedules import Factors


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
