import pytest

from tune_speed.components.metrics.base import speed_up


def test_mixed_precision_of_the_first_source_is_as_fast_as_its_table_says() -> None:
    """S0, Table I, ResNet50 on CIFAR-10: 0.86 h against 0.46 h."""
    assert speed_up(0.86, 0.46) == pytest.approx(1.87, abs=0.005)
