import pytest
from grids import factors_of_run, lr_of_run, torch_lr_of_run
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from tune_speed.components.schedules.decays import Cosine


@settings(max_examples=40)
@given(num_steps=st.integers(1, 100), final=st.floats(0, 1))
def test_cosine_equals_torch_step_by_step(num_steps, final):
    theirs = torch_lr_of_run(
        lambda o: CosineAnnealingLR(o, T_max=num_steps, eta_min=final), num_steps
    )
    ours = lr_of_run(Cosine(final_frac=final), num_steps)
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@pytest.mark.parametrize(("rise", "fall"), [(1, 9), (5, 85), (30, 10), (12, 1)])
def test_cosine_after_a_warmup_equals_torch(rise, fall):
    config = Cosine(warmup_frac=rise / (rise + fall), warmup_start=0.125)

    def sequence(optimizer):
        parts = [
            LinearLR(optimizer, 0.125, total_iters=rise),
            CosineAnnealingLR(optimizer, T_max=fall),
        ]
        return SequentialLR(optimizer, parts, milestones=[rise])

    assert lr_of_run(config, rise + fall) == pytest.approx(torch_lr_of_run(sequence, rise + fall))


def test_cosine_by_hand():
    rates = lr_of_run(Cosine(final_frac=0.2), 4)
    assert rates == pytest.approx([1.0, 0.6 + 0.4 * 0.5**0.5, 0.6, 0.6 - 0.4 * 0.5**0.5])


def test_cosine_leaves_the_momentum_alone():
    assert {factors.momentum for factors in factors_of_run(Cosine(), 10)} == {None}


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_cosine_refuses_a_final_share_outside_0_to_1(value):
    with pytest.raises(ValidationError, match="final_frac"):
        Cosine(final_frac=value)
