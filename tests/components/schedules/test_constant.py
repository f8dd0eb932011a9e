from tune_speed.components.schedules.base import Constant


def test_constant_leaves_rate_and_momentum_alone():
    assert Constant().factors(0.01, step_frac=0.01) == (1.0, None)
    assert Constant().factors(1.0, step_frac=0.01) == (1.0, None)


def test_constant_does_not_look_at_losses():
    assert Constant().factors(0.5, step_frac=0.01, losses=[1.0, 2.0, 3.0]) == (1.0, None)


def test_constant_after_a_warmup_leaves_the_rate_alone():
    config = Constant(warmup_frac=0.5, warmup_start=0.2)
    assert config.factors(0.25, step_frac=0.25) == (0.2, None)
    assert config.factors(0.75, step_frac=0.25) == (1.0, None)
