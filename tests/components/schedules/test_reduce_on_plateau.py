import pytest
from grids import torch_optimizer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.optim.lr_scheduler import ReduceLROnPlateau

from tune_speed.components.schedules.decays import ReduceOnPlateau

# Few distinct values, so that losses stall, and neighbours, so that the threshold decides.
losses_of_runs = st.lists(
    st.sampled_from([0.0, 0.5, 0.99985, 0.9999, 0.99995, 1.0, 1.5]) | st.floats(0, 1e3), max_size=40
)
configs = st.builds(
    ReduceOnPlateau,
    factor=st.floats(0.05, 0.9),
    patience=st.integers(0, 4),
    threshold=st.sampled_from([0.0, 1e-4, 0.1]),
    cooldown=st.integers(0, 4),
    min_factor=st.sampled_from([1e-8, 0.05, 1.0]),
)


def our_rates(config, losses):
    """Returns the factor after each evaluation."""
    so_far = [losses[: n + 1] for n in range(len(losses))]
    return [config.factors(0.5, step_frac=0.1, losses=part).lr for part in so_far]


def torch_rates(config, losses):
    optimizer = torch_optimizer(lr=1.0)
    plateau = ReduceLROnPlateau(
        optimizer,
        factor=config.factor,
        patience=config.patience,
        threshold=config.threshold,
        cooldown=config.cooldown,
        min_lr=config.min_factor,
        eps=0.0,
    )
    for loss in losses:
        plateau.step(loss)
        yield optimizer.param_groups[0]["lr"]


@settings(max_examples=100)
@given(config=configs, losses=losses_of_runs)
@example(config=ReduceOnPlateau(patience=0), losses=[1.0] * 40)
@example(config=ReduceOnPlateau(patience=1, cooldown=3), losses=[1.0] * 40)
@example(config=ReduceOnPlateau(patience=0, cooldown=2), losses=[1.0, 1.0, 0.5, 0.4, 0.4, 0.4, 0.4])
def test_reduce_on_plateau_equals_torch_call_by_call(config, losses):
    assert our_rates(config, losses) == pytest.approx(list(torch_rates(config, losses)), rel=1e-9)


def test_two_stalls_are_borne_and_the_third_drops():
    config = ReduceOnPlateau(patience=2)
    assert our_rates(config, [1, 0.9, *5 * [0.8]]) == pytest.approx(5 * [1.0] + 2 * [0.1])


def test_defaults_are_those_of_torch():
    config, theirs = ReduceOnPlateau(), ReduceLROnPlateau(torch_optimizer())
    for field in ("factor", "patience", "threshold", "cooldown"):
        assert getattr(config, field) == getattr(theirs, field)


def test_without_an_evaluation_there_is_no_drop():
    assert ReduceOnPlateau(patience=0).factors(1.0, step_frac=0.5) == (1.0, None)


def test_drops_end_at_the_least_factor():
    config = ReduceOnPlateau(patience=0, min_factor=1e-3)
    assert our_rates(config, [1.0] * 500)[-1] == 1e-3
    assert our_rates(ReduceOnPlateau(patience=0), [1.0] * 500)[-1] == 1e-8


def test_a_drop_in_the_warmup_multiplies_it():
    config = ReduceOnPlateau(patience=0, warmup_frac=0.5, warmup_start=0.2)
    assert config.factors(0.25, step_frac=0.25, losses=[1.0, 1.0]).lr == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("factor", 1.0),
        ("factor", 0.0),
        ("patience", -1),
        ("patience", 1.5),
        ("threshold", 1.0),
        ("cooldown", -1),
        ("min_factor", 0.0),
    ],
)
def test_reduce_on_plateau_refuses_values_that_never_drop_or_never_end(field, value):
    with pytest.raises(ValidationError, match=field):
        ReduceOnPlateau(**{field: value})
