import pytest
from grids import lr_of_run, torch_lr_of_run
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.optim.lr_scheduler import LinearLR

from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.schedules.base import Constant
from tune_speed.components.schedules.decays import Cosine, MultiStep, ReduceOnPlateau, Trapezoid

EPOCHS, STEPS_PER_EPOCH = 90, 20


@settings(max_examples=40)
@given(num_steps=st.integers(2, 80), data=st.data(), start=st.floats(0.001, 1))
def test_warmup_equals_torch_step_by_step(num_steps, data, start):
    rise = data.draw(st.integers(1, num_steps - 1))
    config = Constant(warmup_frac=rise / num_steps, warmup_start=start)
    theirs = torch_lr_of_run(lambda o: LinearLR(o, start, total_iters=rise), num_steps)
    assert lr_of_run(config, num_steps) == pytest.approx(theirs, rel=1e-9)


def test_warmup_ends_between_steps_where_its_share_does():
    rates = lr_of_run(Constant(warmup_frac=0.25, warmup_start=0.5), 10)
    assert rates == pytest.approx([0.5, 0.7, 0.9] + 7 * [1.0])


@pytest.mark.parametrize("kind", [Constant, Cosine, ReduceOnPlateau, MultiStep, Trapezoid])
def test_warmup_is_the_same_in_every_schedule_that_has_one(kind):
    warm = lr_of_run(kind(warmup_frac=0.3, warmup_start=0.1), 10)[:3]
    assert warm == pytest.approx([0.1, 0.4, 0.7])


def goyal_rates(*, batch_size: int) -> list[float]:
    """Returns the rates of Goyal et al., section 5.1: 0.1 per 256, 5 epochs of warm-up of 90."""
    optimizer = Sgd(lr=0.1, lr_per_examples=256, momentum=0.9)
    schedule = MultiStep(
        milestones=[30 / 90, 60 / 90, 80 / 90],
        warmup_frac=5 / 90,
        warmup_start=256 / batch_size,
    )
    factors = lr_of_run(schedule, EPOCHS * STEPS_PER_EPOCH)
    return [optimizer.step_lr(batch_size) * factor for factor in factors]


def test_linear_scaling_and_warmup_give_the_rates_of_goyal_et_al():
    rates = goyal_rates(batch_size=2048)
    at_epoch = {epoch: rates[int(epoch * STEPS_PER_EPOCH)] for epoch in (0, 2.5, 5, 30, 60, 80)}
    assert at_epoch == pytest.approx({0: 0.1, 2.5: 0.45, 5: 0.8, 30: 0.08, 60: 8e-3, 80: 8e-4})
    assert rates[30 * STEPS_PER_EPOCH - 1] == pytest.approx(0.8)
    rise = [0.1 + 0.7 * t / (5 * STEPS_PER_EPOCH) for t in range(5 * STEPS_PER_EPOCH)]
    assert rates[: len(rise)] == pytest.approx(rise)


def test_reference_batch_of_goyal_et_al_needs_no_warmup():
    assert goyal_rates(batch_size=256)[: 30 * STEPS_PER_EPOCH] == [pytest.approx(0.1)] * 600


@pytest.mark.parametrize(
    ("field", "value"),
    [("warmup_frac", 1.0), ("warmup_frac", -0.1), ("warmup_start", 0.0), ("warmup_start", 1.1)],
)
def test_warmup_refuses_values_that_make_no_rise(field, value):
    with pytest.raises(ValidationError, match=field):
        Constant(**{field: value})
