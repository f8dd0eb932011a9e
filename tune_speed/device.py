"""What a run needs from the device that it trains on; CPU and CUDA behind the same few functions."""

import platform
import re
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from tune_speed.errors import ConfigError

GIB = 1024**3


def resolve_device(name: str) -> torch.device:
    """Returns the device of that name; `auto` is CUDA where there is one, otherwise the CPU.

    Raises: ConfigError if CUDA is asked for and not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device must exist, but got {name} and torch sees no CUDA. Try `cpu`.")
    return torch.device(name)


def synchronizer(device: torch.device) -> Callable[[], None]:
    """Returns a call that waits until the device has done all work queued so far."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def describe_device(device: torch.device) -> str:
    """Returns the name that records carry: `NVIDIA H200`, or `cpu (2 threads, AMD EPYC)`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({torch.get_num_threads()} threads, {_cpu_model()})"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def limit_memory(device: torch.device, *, gpu_fraction: float) -> None:
    """Bounds this process's share of a shared GPU, so that a greedy trial stops itself.

    Nine tenths of the fraction go to the caching allocator; the rest is for what lies outside it
    (CUDA context, cuDNN). Must be called before the first CUDA tensor.
    """
    if device.type == "cuda" and 0 < gpu_fraction < 1:
        torch.cuda.set_per_process_memory_fraction(0.9 * gpu_fraction, device)


def memory_limit_gib(device: torch.device, *, gpu_fraction: float, cpu_fraction: float) -> float:
    """Returns the memory [GiB] that a trial with these shares of its device may use."""
    if device.type == "cuda":
        share = 0.9 * gpu_fraction if 0 < gpu_fraction < 1 else 1.0
        return share * torch.cuda.get_device_properties(device).total_memory / GIB
    return min(1.0, cpu_fraction) * psutil.virtual_memory().total / GIB


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new peak. On Linux a process may reset its own high-water mark of resident memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # Not Linux, or forbidden: the peak is then the process's, which is no less.


def peak_memory_gib(device: torch.device) -> float:
    """Returns the peak [GiB] since the reset: allocated tensors (CUDA), resident memory (CPU)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    status = Path("/proc/self/status")
    match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(match[1]) / 1024**2 if match else psutil.Process().memory_info().rss / GIB


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether `error` says that memory ran out: CUDA's, or the CPU allocator's own."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
