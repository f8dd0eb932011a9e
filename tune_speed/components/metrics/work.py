"""Work per second, and how much of the device's time went into work."""

from typing import TYPE_CHECKING

from tune_speed.components.metrics.base import Metric

if TYPE_CHECKING:
    import torch


def gpu_utilisation(device: "torch.device") -> float | None:
    """Returns the share of the last second or less in which some kernel ran on the GPU, in [0, 1].

    What nvidia-smi shows; it says nothing on how many of the GPU's cores that kernel used. Does not
    wait for the device. None on a CPU, where the driver or `nvidia-ml-py` is missing, and on a part
    of a GPU, which does not count it: then the fed ratio stands in.
    """
    if device.type != "cuda":
        return None
    try:
        import pynvml
    except ImportError:
        return None
    import torch

    try:
        return torch.cuda.utilization(device) / 100
    except (RuntimeError, pynvml.NVMLError):
        return None


WORK = {
    "images_per_s": Metric(
        about="Training samples per second of the training clock.",
        unit="images/s",
        source="S0, equation 2",
        of_run=lambda run: run.images_per_s,
    ),
    "flop_per_s": Metric(
        about="Floating-point operations per second of the training clock, from those of"
        " convolutions, matrix products and attention: `tune-speed profile`.",
        unit="FLOP/s",
        source="S0, equation 2; torch.utils.flop_counter",
    ),
    "gpu_utilisation": Metric(
        about="Share of time in which some kernel ran on the GPU, the mean of samples at the"
        " evaluations; needs `nvidia-ml-py`.",
        unit="1",
        source="S1, section 4; torch.cuda.utilization",
        of_run=lambda run: run.gpu_utilisation,
    ),
    "fed_ratio": Metric(
        about="Share of the training time in which the loop did not wait for its next batch; stands"
        " in for the utilisation, on CPUs too.",
        unit="1",
        source="S4, Data Serving",
        of_run=lambda run: run.fed_ratio,
    ),
}
