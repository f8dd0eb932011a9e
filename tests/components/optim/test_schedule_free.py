"""Schedule-free optimizers: what is trained and what is evaluated, against the paper's formulas."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.libraries import ScheduleFreeAdamW, ScheduleFreeSgd
from tune_speed.components.schedules.base import Factors

BETA1, BETA2, EPS, DECAY = 0.8, 0.9, 1e-3, 0.1
RATES = (0.25, 0.5, 1.0, 1.0, 1.0)
SGD = ScheduleFreeSgd(lr=0.1, beta1=BETA1, weight_decay=DECAY)
ADAMW = ScheduleFreeAdamW(lr=0.1, beta1=BETA1, beta2=BETA2, eps=EPS, weight_decay=DECAY)


def weights() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2, bias=False, dtype=torch.float64)


def gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, generator=generator, dtype=torch.float64) for _ in RATES]


def by_the_paper(*, is_adam: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields y and x after each step, as the paper defines them: x is a mean of all z."""
    z = next(weights().parameters()).detach().clone()
    x, y, v = z.clone(), z.clone(), torch.zeros_like(z)
    zs, masses = [], []
    for k, (factor, g) in enumerate(zip(RATES, gradients(), strict=True), start=1):
        rate = 0.1 * factor
        if is_adam:
            v = BETA2 * v + (1 - BETA2) * g**2
            g = g / ((v / (1 - BETA2**k)).sqrt() + EPS)
        z = z - rate * (g + DECAY * y)
        zs.append(z)
        masses.append(rate**2)
        weighted = torch.stack([m * each for m, each in zip(masses, zs, strict=True)])
        x = weighted.sum(dim=0) / sum(masses)
        y = (1 - BETA1) * z + BETA1 * x
        yield y, x


@pytest.mark.parametrize("config", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_it_trains_and_evaluates_the_weights_of_the_paper(config: ScheduleFreeSgd) -> None:
    model = weights()
    (weight,) = model.parameters()
    optimizer = config.build(model, effective_batch_size=1, fused=False)
    averager = config.averager(model, optimizer)
    judge = by_the_paper(is_adam=config is ADAMW)
    for factor, gradient, (y, x) in zip(RATES, gradients(), judge, strict=True):
        set_rates(optimizer, Factors(lr=factor, momentum=None))
        weight.grad = gradient.clone()
        optimizer.step()
        before = weight.detach().clone()
        (mean,) = averager.model.parameters()
        torch.testing.assert_close(weight.detach(), y)
        torch.testing.assert_close(mean.detach(), x)
        assert torch.equal(weight, before), "an evaluation moves no weight that trains"


def test_before_the_first_step_the_mean_is_the_model_with_its_statistics() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    averager = SGD.averager(model, SGD.build(model, effective_batch_size=1, fused=False))
    model(torch.ones(4, 2))
    for name, value in averager.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
