from tune_speed.schedules import Constant


def test_constant_leaves_rate_and_momentum_alone():
    assert Constant().factors(0.01, step_frac=0.01) == (1.0, None)
    assert Constant().factors(1.0, step_frac=0.01) == (1.0, None)
