import math

import pytest

from tune_speed.components.metrics.speed_up import expected_speed_up, speed_up, synergy


def test_mixed_precision_of_the_first_source_is_as_fast_as_its_table_says() -> None:
    """S0, Table I, ResNet50 on CIFAR-10: 0.86 h against 0.46 h."""
    assert speed_up(0.86, 0.46) == pytest.approx(1.87, abs=0.005)


def test_parts_multiply() -> None:
    """S3: stochastic depth 1.8 times, four GPUs 3.3 times; it printed 5.94 = 1.8 · 3.9."""
    assert expected_speed_up([1.8, 3.3]) == pytest.approx(5.94)
    assert expected_speed_up([]) == 1.0


def test_synergy_is_zero_where_parts_multiply_and_negative_where_they_overlap() -> None:
    assert synergy(6.0, [2.0, 3.0]) == pytest.approx(0.0, abs=1e-12)
    assert synergy(3.0, [2.0, 3.0]) == pytest.approx(-math.log(2))
    assert synergy(speed_up(162, 32), [1.8, 3.3]) == pytest.approx(math.log(5.0625 / 5.94))
