import pytest
import torch

from tune_speed.components.metrics.quantisation import dynamic_loss_scale, quantisation_error


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float16, 1.4e-4), (torch.bfloat16, 1.12e-3)]
)
def test_error_of_a_standard_normal(dtype: torch.dtype, expected: float) -> None:
    values = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    assert quantisation_error(values, dtype) == pytest.approx(expected, rel=0.01)


def test_bfloat16_has_three_bits_less_than_float16() -> None:
    values = 1 + torch.rand(200_000, generator=torch.Generator().manual_seed(0))
    ratio = quantisation_error(values, torch.bfloat16) / quantisation_error(values, torch.float16)
    assert ratio == pytest.approx(8.0, rel=0.02)


def test_error_of_values_on_the_grid_is_nothing_and_between_two_it_is_half_the_gap() -> None:
    """Next to 1 the grid of bfloat16, which has 7 bits of fraction, has a gap of 2^-7."""
    assert quantisation_error(torch.tensor([0.5, 1.0, 3.0]), torch.bfloat16) == 0.0
    middle = torch.tensor([1 + 2**-8])
    assert quantisation_error(middle, torch.bfloat16) == 2**-8


def test_overflow_is_an_infinite_error() -> None:
    assert quantisation_error(torch.tensor([70_000.0]), torch.float16) == float("inf")


def test_equal_losses_leave_the_scale() -> None:
    assert dynamic_loss_scale(1024, fp32_loss=0.3, mixed_loss=0.3, beta=2.0) == 1024


def test_scale_follows_the_power_of_the_ratio() -> None:
    assert dynamic_loss_scale(8, fp32_loss=0.6, mixed_loss=0.3, beta=2.0) == pytest.approx(32)
    assert dynamic_loss_scale(8, fp32_loss=0.3, mixed_loss=0.6, beta=0.5) == pytest.approx(
        8 / 2**0.5
    )
