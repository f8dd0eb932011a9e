import pytest
import torch
from grids import lr_of_run

from tune_speed.components.schedules.decays import Exponential


def test_it_is_torchs_exponential_lr_at_every_step():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.603 ** (1 / 40))
    for rate in lr_of_run(Exponential(final_frac=0.603), 40):
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


def test_it_falls_from_the_end_of_the_warm_up():
    rates = lr_of_run(Exponential(final_frac=0.01, warmup_frac=0.5, warmup_start=0.2), 100)
    assert rates[0] == pytest.approx(0.2) and rates[50] == pytest.approx(1)
    assert rates[75] == pytest.approx(0.1)
