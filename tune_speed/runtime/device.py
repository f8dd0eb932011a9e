"""What a run needs from its device; CPU and CUDA behind the same few functions."""

import ctypes
import gc
import math
import platform
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from tune_speed.core.errors import ConfigError
from tune_speed.core.words import Device
from tune_speed.runtime.cpu_name import cpu_name
from tune_speed.runtime.cuda_context import context_gib

# Without it the host runs on until the launch queue is full, some twenty replayed steps: neighbours
# that measure wait for all of them, clocks are read early, and the loader seems to be slow.
STEPS_AHEAD = 3
HEADROOM_BYTES = 64 * 1024**2
SCARCE_SHARE = 0.8


class DataLimit:
    """The bound of one process; without effect where the system is not Linux."""

    def __init__(self) -> None:
        self._base_bytes: int | None = None

    def set(self, num_bytes: int) -> None:
        """Allows `num_bytes` beyond what the process had when it was first called."""
        if self._base_bytes is None:
            self._base_bytes = status_bytes("VmData")
        if self._base_bytes is not None:
            _set_soft_limit(self._base_bytes + num_bytes)

    def renew_headroom(self) -> None:
        """Leaves some room above what is in use, if the bound is ours."""
        # What malloc retains counts as used. It can serve the next tensors, but not the code that
        # oneDNN compiles, which needs pages of its own.
        used = status_bytes("VmData")
        if self._base_bytes is not None and used is not None:
            _set_soft_limit(max(_soft_limit(), used + HEADROOM_BYTES))

    def left(self) -> float:
        """Returns the bytes that the process may still have."""
        used = status_bytes("VmData")
        return math.inf if used is None else max(0.0, _soft_limit() - used)

    def is_near(self) -> bool:
        used = status_bytes("VmData")
        return used is not None and used > SCARCE_SHARE * _soft_limit()


def status_bytes(name: str) -> int | None:
    """Returns an entry of /proc/self/status [bytes], or None where there is none."""
    status = Path("/proc/self/status")
    text = status.read_text() if status.exists() else ""
    match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _soft_limit() -> float:
    # Not on every system.
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def _set_soft_limit(num_bytes: float) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if num_bytes == float("inf"):
        return
    soft = int(num_bytes) if hard == resource.RLIM_INFINITY else min(int(num_bytes), hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


GIB = 1024**3
# A container's limit of memory [bytes], in version 2 and in version 1.
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

# Names of glibc's `mallopt`, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

_OUT_OF_MEMORY = (
    # Torch's allocator on the CPU.
    "can't allocate memory",
    # C++ below it.
    "std::bad_alloc",
    # The driver itself, outside torch's allocator, and NCCL, which quotes it.
    "CUDA error: out of memory",
    "Cuda failure 2 'out of memory'",
    "Cuda failure 'out of memory'",
    # A library's handle or its workspace is allocated when it is first used.
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_INITIALIZED",
    # cuDNN passes over each algorithm whose workspace it cannot have.
    "unable to find an engine",
)
# What oneDNN says on a CPU, whatever the reason; it counts near the limit. Memory that is retained
# for the next step is part of what is used, so that a failed step leaves the process near it.
_LOST = ("CUDA error:", "Cuda failure", "STATUS_EXECUTION_FAILED", "STATUS_INTERNAL_ERROR")
"""What the driver and its libraries say, memory apart, where a process has lost its device."""
_PERHAPS_OUT_OF_MEMORY = "could not create a primitive"
_data_limit = DataLimit()


def resolve_device(name: str) -> torch.device:
    """Returns the device of that name, a GPU with its number; `auto` is CUDA where there is one.

    Raises: ConfigError if there is no such device, or CUDA is requested and not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ConfigError(f"device must be `cpu`, `cuda` or `auto`, but got `{name}`.")
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if (device.index or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count()
        raise ConfigError(f"device must exist, but got {name} and torch sees {seen}. Try `cpu`.")
    return torch.device("cuda", device.index or 0)


def synchronizer(device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def pacer(device: torch.device) -> Callable[[], None]:
    """Returns a call for after each step that keeps the host at most `STEPS_AHEAD` steps ahead."""
    if device.type != "cuda":
        return lambda: None
    events = deque[torch.cuda.Event]()

    def keep_pace() -> None:
        # A wait that blocks leaves the core to others: the device has work for longer.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        events.append(event)
        if len(events) > STEPS_AHEAD:
            events.popleft().synchronize()

    return keep_pace


def describe_device(device: torch.device) -> str:
    return str(device_of(device))


def device_of(device: torch.device, count: int = 1) -> Device:
    """Returns so many devices that train together, as records have them."""
    if device.type == "cuda":
        return Device(type=torch.cuda.get_device_name(device), count=count)
    return Device(type=cpu_name(), count=count, threads=torch.get_num_threads())


def device_key(device: torch.device) -> str:
    """Returns what names the device to all that share it: a GPU's UUID, a node's boot or name."""
    if device.type == "cuda":
        return f"gpu-{torch.cuda.get_device_properties(device).uuid}"
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return f"cpu-{boot_id.read_text().strip() if boot_id.exists() else platform.node()}"


def set_up_process(device: torch.device, *, cpu_threads: int) -> None:
    """Gives this process its device and threads; a step's memory is retained for the next one."""
    # CUDA graphs, streams and what libraries call `cuda` are on the current device: without it a
    # graph for `cuda:1` would be recorded on `cuda:0`, and be empty (pytorch 87894).
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # By default glibc returns blocks of 32 MiB and more, and the free end of its heap, to the
    # system, and each step gets them back page by page. Without that ResNet-20 trains 1.08 times as
    # fast with batches of 128 and 1.5 times with 512, ResNet-18 1.15 times with 128 (fp32, one core
    # of an AMD EPYC, medians of 5 to 8 interleaved spans); the peak rises by 2 to 10 %.
    torch.set_num_threads(cpu_threads)
    libc = _libc()
    if device.type == "cpu" and libc is not None:
        libc.mallopt(_M_TRIM_THRESHOLD, -1)
        libc.mallopt(_M_MMAP_MAX, 0)


@cache
def _libc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def limit_memory(
    device: torch.device, *, gpu_fraction: float, cpu_fraction: float | None = None
) -> None:
    """Bounds this process's share of a shared device, so that a greedy trial stops itself.

    On a GPU, before the first CUDA tensor: the fraction without the CUDA context goes to the
    caching allocator, but for a tenth. On a CPU, the fraction of the node's memory may be allocated
    beyond what the process had at the first call: then torch raises.
    """
    # Within oneDNN's convolutions a process may still die, in a third of the cases that were tried.
    if device.type == "cuda" and 0 < gpu_fraction < 1:
        fraction = _share_of_allocator(device, gpu_fraction)
        torch.cuda.set_per_process_memory_fraction(fraction, device)
    if device.type == "cpu" and cpu_fraction is not None:
        share = memory_limit_gib(device, gpu_fraction=gpu_fraction, cpu_fraction=cpu_fraction)
        _data_limit.set(int(share * GIB))


def memory_limit_gib(
    device: torch.device,
    *,
    gpu_fraction: float,
    cpu_fraction: float,
    memory_gib: float | None = None,
) -> float:
    """Returns a trial's memory [GiB]; on a CPU `memory_gib` comes before the share of cores."""
    if device.type == "cpu" and memory_gib is not None:
        return memory_gib
    if device.type == "cuda":
        share = _share_of_allocator(device, gpu_fraction) if 0 < gpu_fraction < 1 else 1.0
        return share * torch.cuda.get_device_properties(device).total_memory / GIB
    return min(1.0, cpu_fraction) * _node_memory_bytes() / GIB


def _share_of_allocator(device: torch.device, gpu_fraction: float) -> float:
    """Returns the share of a GPU for a trial's tensors. Raises: ConfigError if there is none."""
    whole_gib = torch.cuda.get_device_properties(device).total_memory / GIB
    # With 24 GiB and five trials, a tenth of each one's share is less than its context.
    share = 0.9 * (gpu_fraction - context_gib(device) / whole_gib)
    if share <= 0:
        raise ConfigError(
            f"search.resources.gpu must leave a trial more than its CUDA context of"
            f" {context_gib(device):.2g} GiB, but got {gpu_fraction:g} of {whole_gib:.3g} GiB."
            " Try a larger share."
        )
    return share


def _node_memory_bytes(limit_files: Sequence[Path] = CGROUP_LIMITS) -> int:
    texts = [file.read_text().strip() for file in limit_files if file.exists()]
    # Without a limit it says `max`.
    limits = [int(text) for text in texts if text.isdigit()]
    return min([int(psutil.virtual_memory().total), *limits])


def reset_peak_memory(device: torch.device) -> None:
    """Starts a new peak, and on a CPU gives freed memory back, which would count in it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    _trim_heap()
    # On Linux a process may reset its own high-water mark of resident memory.
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        # Not Linux, or forbidden: the peak is then the process's, which is no less.
        return


def peak_memory_gib(device: torch.device) -> float:
    """Returns the peak [GiB] since the reset: allocated tensors (CUDA), resident memory (CPU)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    peak = status_bytes("VmHWM")
    return (psutil.Process().memory_info().rss if peak is None else peak) / GIB


def device_memory_gib(device: torch.device) -> float | None:
    """Returns the memory in use on the GPU [GiB], caches and co-tenants included; None on a CPU."""
    if device.type != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return (total_bytes - free_bytes) / GIB


def free_bytes(device: torch.device) -> int:
    """Returns how much more this process may allocate on the device, by its own limit too."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        allocated = torch.cuda.memory_allocated(device)
        cached = torch.cuda.memory_reserved(device) - allocated
        limit = torch.cuda.get_per_process_memory_fraction(device) * total
        return max(0, min(free + cached, int(limit) - allocated))
    available = min(int(psutil.virtual_memory().available), _node_memory_bytes())
    return int(min(available, _data_limit.left()))


def release_memory(device: torch.device) -> None:
    """Gives back what dead tensors still hold, so that the next try starts from nothing."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        _trim_heap()
        _data_limit.renew_headroom()


def _trim_heap() -> None:
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def remembered(tensors: Iterable[Tensor]) -> Callable[[], None]:
    """Returns what gives tensors their present values again, which are on the host until then."""
    # One copy for each type: each waits for the GPU, which others may have for milliseconds at a
    # time. Detached: no stream may wait for nodes of autograd on one that is captured.
    groups = defaultdict[Any, list[Tensor]](list)
    for tensor in tensors:
        groups[tensor.dtype, tensor.device].append(tensor.detach())
    kept = [
        (group, torch.cat([each.reshape(-1) for each in group]).cpu()) for group in groups.values()
    ]

    @torch.no_grad()
    def restore() -> None:
        for group, values in kept:
            parts = torch.split(values, [each.numel() for each in group])
            for tensor, part in zip(group, parts, strict=True):
                # Up to 64 KiB it is staged without a wait; all at once would be in the peak.
                tensor.copy_(part.view(tensor.shape), non_blocking=True)

    return restore


def is_out_of_memory(error: BaseException) -> bool:
    return any(map(_says_out_of_memory, _with_causes(error)))


def is_device_failure(error: BaseException) -> bool:
    """Returns whether `error` is the accelerator's own, after which this process has lost it.

    Such as a device-side assert, an illegal address, an ECC error, or a fault of another client of
    MPS; neither memory that ran out nor a capture that cannot be.
    """
    if is_out_of_memory(error):
        return False
    texts = [str(each) for each in _with_causes(error) if isinstance(each, RuntimeError)]
    return any("captur" not in text and any(map(text.__contains__, _LOST)) for text in texts)


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    # Compilers wrap what goes wrong in them, and what tidies up after an error may fail too.
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _says_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY):
        return True
    return _PERHAPS_OUT_OF_MEMORY in str(error) and _data_limit.is_near()
