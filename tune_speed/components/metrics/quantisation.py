"""What fewer bits do to numbers: diagnostics of mixed precision, without effect on training."""

from typing import TYPE_CHECKING

from tune_speed.components.metrics.base import Metric

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def quantisation_error(values: "Tensor", dtype: "torch.dtype") -> float:
    """Returns (1/N) Σ |x - Q(x)| with Q the round trip through `dtype`; waits for the device.

    For a standard normal x it is 1.4e-4 in fp16 and 1.12e-3 in bf16, which has 3 bits less.
    What overflows in `dtype` makes it infinite.

    Args:
        values: any shape; float32 or float64.
        dtype: such as `torch.float16` or `torch.bfloat16`.

    Source: S0, equation 3, which leaves Q open.
    """
    return float((values.double() - values.to(dtype).double()).abs().mean())


def dynamic_loss_scale(
    base_scale: float, *, fp32_loss: float, mixed_loss: float, beta: float
) -> float:
    """Returns base · (L_fp32 / L_mixed)^β: S0's formula; equal losses leave the base.

    No library scales so. What trains in fp16 here is torch's `GradScaler`, which halves the scale
    on an overflow and doubles it after 2000 steps without one.

    Source: S0, equation 4.
    """
    assert fp32_loss > 0 and mixed_loss > 0, (fp32_loss, mixed_loss)
    # A power of floats is a float, but typeshed says Any, as a negative base gives a complex one.
    return base_scale * float((fp32_loss / mixed_loss) ** beta)


QUANTISATION = {
    "quantisation_error": Metric(
        about="Mean absolute error of a round trip through a type of fewer bits:"
        " `quantisation_error`.",
        unit="that of the values",
        source="S0, equation 3",
    ),
    "dynamic_loss_scale": Metric(
        about="S0's loss scale from the losses in fp32 and mixed precision, a diagnostic; training"
        " uses torch's GradScaler: `dynamic_loss_scale`.",
        unit="1",
        source="S0, equation 4",
    ),
}
