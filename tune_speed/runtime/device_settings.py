"""Settings of a GPU, beside the recipe's own, on which the speed of the same step depends."""

import os
from collections.abc import Mapping
from functools import cache

import torch

from tune_speed.runtime.hardware import GpuFacts, compute_mode, driver_version

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# It overrules torch's flags in cuBLAS and cuDNN alike.
TF32_VARIABLE = "NVIDIA_TF32_OVERRIDE"
NOT_OF_SPEED = {"compute_mode"}


def device_settings(device: torch.device) -> dict[str, str]:
    """Returns what records say of a GPU's settings as they are now; nothing of a CPU."""
    if device.type != "cuda":
        return {}
    cudnn = torch.backends.cudnn
    return {
        "tf32_matmul": str(torch.backends.cuda.matmul.allow_tf32),
        "cudnn_benchmark": str(cudnn.benchmark),
        "cudnn_deterministic": str(cudnn.deterministic),
        **_around_the_recipe(device),
    }


def speed_settings(device: torch.device) -> Mapping[str, str]:
    if device.type != "cuda":
        return {}
    return {k: v for k, v in _around_the_recipe(device).items() if k not in NOT_OF_SPEED}


def _around_the_recipe(device: torch.device) -> dict[str, str]:
    allocator = next(filter(None, map(os.environ.get, ALLOCATOR_VARIABLES)), "default")
    return {
        "tf32_conv": str(torch.backends.cudnn.allow_tf32),
        "tf32_override": os.environ.get(TF32_VARIABLE, "none"),
        "cudnn": str(torch.backends.cudnn.enabled),
        "allocator": allocator,
        **_of_driver(device),
    }


@cache
def _of_driver(device: torch.device) -> Mapping[str, str]:
    return {
        "driver": driver_version() or "unknown",
        "compute_mode": compute_mode(device) or "unknown",
    }


def describe_modes(gpu: GpuFacts) -> str:
    modes = {
        "compute mode": gpu.compute_mode,
        "MPS": "on" if gpu.mps else "off",
        "MIG": gpu.mig_mode,
        "persistence": gpu.persistence_mode,
        "ECC": gpu.ecc_mode,
    }
    return ", ".join(f"{name} {value or 'not known'}" for name, value in modes.items())


def why_not_shared(gpu: GpuFacts) -> str | None:
    """Returns why several trials cannot share the GPU as it is set, and what to try; or None."""
    mode = gpu.compute_mode or "Default"
    if mode == "Prohibited":
        return "no process can use it; try `nvidia-smi -c DEFAULT`"
    if mode.startswith("Exclusive") and not gpu.mps:
        return "unfit for sharing: it takes one process; try `nvidia-smi -c DEFAULT`, or MPS"
    return None
