"""How much of the device's time went into work."""

import torch

from tune_speed.runtime.hardware import ask_nvml


def gpu_utilisation(device: torch.device) -> float | None:
    """Returns the share of the last second or less in which some kernel ran on the GPU, in [0, 1].

    What nvidia-smi shows; it says nothing on how many of the GPU's cores that kernel used. Does not
    wait for the device. None on a CPU, without an NVIDIA driver, and on a part of a GPU, which does
    not count it: then the fed ratio replaces it.
    """
    rates = ask_nvml(device, "nvmlDeviceGetUtilizationRates")
    return None if rates is None else float(rates.gpu) / 100
