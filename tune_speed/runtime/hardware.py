"""The machine that a time was measured on: what a reader needs to judge it or to measure again.

Nothing here raises: what a machine does not have or does not report is None.
"""

import functools
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import torch
from pydantic import model_validator

from tune_speed.core.records import Record
from tune_speed.core.version import installed_version
from tune_speed.runtime.cpu_name import CPU_INFO, cpu_name
from tune_speed.runtime.device import describe_device, device_key, memory_limit_gib
from tune_speed.runtime.mps import find_mps


class GpuFacts(Record):
    """The GPU, as far as the driver reports; on a CPU everything is None."""

    name: str | None
    """Name, such as `NVIDIA H200`."""
    uuid: str | None
    """UUID of the GPU, or of its MIG instance."""
    power_limit_w: float | None
    """Power limit [W]."""
    sm_clock_mhz: float | None
    """Clock of the processors when it was read [MHz]."""
    memory_clock_mhz: float | None
    """Clock of the memory when it was read [MHz]."""
    max_sm_clock_mhz: float | None
    """Highest clock of the processors [MHz]."""
    max_memory_clock_mhz: float | None
    """Highest clock of the memory [MHz]."""
    clock_reasons: tuple[str, ...] | None
    """What held the clocks down when it was read, such as `hw_thermal_slowdown`."""
    mig_mode: str | None
    """`Enabled` where the GPU is cut into instances; None: it cannot be, or is not known."""
    mps: bool | None
    """Whether NVIDIA's multi-process service is requested or seen to run."""
    persistence_mode: str | None
    """`Enabled` where the driver stays loaded between processes."""
    compute_mode: str | None
    """`Default`, or `Exclusive_Process` or `Prohibited`, where processes cannot share the GPU."""
    ecc_mode: str | None
    """`Enabled` where memory errors are corrected; None: it cannot be, or is not known."""
    driver: str | None
    """Version of the driver."""

    @model_validator(mode="before")
    @classmethod
    def _of_older_versions(cls, fields: Any) -> Any:
        only = {"compute_mode": None, "ecc_mode": None}
        return {**only, **fields} if isinstance(fields, dict) else fields


NO_GPU = GpuFacts.model_validate(dict.fromkeys(GpuFacts.model_fields))


class CpuFacts(Record):
    """The CPU, as far as the kernel reports."""

    name: str
    """Name, such as `AMD EPYC 9654`."""
    physical_cores: int | None
    """Cores of the node; None: not known."""
    logical_cores: int | None
    """The same, each thread of a core counted; None: not known."""
    usable_cores: int
    """Logical cores on which this process may run."""
    quota: float | None
    """Cores' worth of time that the container may use; None: no limit, or not known."""
    governor: str | None
    """How the frequency is chosen, such as `performance`; None: not known."""
    turbo: bool | None
    """Whether the CPU may exceed its base frequency; None: not known."""
    load_average: float | None
    """Processes of the node that ran or waited in the minute before; None: not known."""


class SoftwareFacts(Record):
    """What lies between the recipe and the machine."""

    torch: str
    """Version of torch."""
    cuda: str | None
    """CUDA version that torch was built with; None on a CPU."""
    cudnn: str | None
    """cuDNN version that torch uses; None on a CPU."""
    timm: str | None
    """Version of timm; None if it is not installed."""
    python: str
    """Version of Python."""
    platform: str
    """Operating system, kernel and C library."""


class SystemFacts(Record):
    """The machine, as far as it is known."""

    device: str
    """Device name, such as `cpu (2 threads, AMD EPYC)` or `NVIDIA H200`."""
    device_key: str
    """Names the physical device: a GPU by its UUID, or the running node."""
    gpu: GpuFacts
    cpu: CpuFacts
    software: SoftwareFacts
    memory_gib: float
    """Memory of the node, or of the container where that has less [GiB]."""
    is_virtual_machine: bool | None
    """Whether the node is a virtual machine; None: not known."""
    container_digest: str | None
    """Digest of the container's image, from TUNE_SPEED_IMAGE_DIGEST; None: not given."""
    container_id: str | None
    """Id of the container; None: in no container, or not known."""


DIGEST_VARIABLE = "TUNE_SPEED_IMAGE_DIGEST"
SYS_CPU = Path("/sys/devices/system/cpu")

# Nanoseconds that a GPU was slowed down for; its ordinary power limit is not among them. Bindings
# before 12.565 lack the names, whose numbers are not the same in all versions.
SLOWDOWNS = tuple(
    f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}_SLOWDOWN"
    for name in ("SW_THERM", "HW_THERM", "HW_POWER_BRAKE")
)
SM, MEMORY = 1, 2
"""Clocks, from nvml.h."""
OFF_OR_ON = ("Disabled", "Enabled")
COMPUTE_MODES = ("Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process")
CLOCK_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of the reasons, from nvml.h."""
SLOWED = (0x8, 0x20, 0x40, 0x80)
"""Those for heat or lack of power."""
SAMPLE_S = 1 / 6
"""NVML's samples are means over so long or longer [s], stamped at their end."""
LEAST_USE = 5
"""Use of a GPU from which on a single sample counts [%]."""


def describe_system(device: torch.device) -> SystemFacts:
    """Returns what can be known of the machine, seen from `device`; up to seconds on a GPU."""
    return SystemFacts(
        device=describe_device(device),
        device_key=device_key(device),
        gpu=describe_gpu(device),
        cpu=_cpu_facts(),
        software=_software_facts(device),
        memory_gib=memory_limit_gib(torch.device("cpu"), gpu_fraction=0.0, cpu_fraction=1.0),
        is_virtual_machine=is_virtual_machine(read_text(CPU_INFO) or ""),
        container_digest=os.environ.get(DIGEST_VARIABLE) or None,
        container_id=container_id(
            cgroup=read_text(Path("/proc/self/cgroup")) or "",
            mountinfo=read_text(Path("/proc/self/mountinfo")) or "",
        ),
    )


def throttle_count(device: torch.device) -> int | None:
    """Returns how much the device was slowed down for heat or power since it started.

    On a CPU events over all cores, on a GPU microseconds; None: not known, as in a virtual machine.
    """
    if device.type != "cuda":
        return cpu_throttle_count(SYS_CPU)
    fields = _ask(lambda nvml: [getattr(nvml, name) for name in SLOWDOWNS])
    answers = fields and ask_nvml(device, "nvmlDeviceGetFieldValues", fields, of_whole=True)
    known_ns = [each.value.ullVal for each in answers or () if each.nvmlReturn == 0]
    return sum(known_ns) // 1000 if known_ns else None


def strangers(device: torch.device, *, for_s: float, tenants: Collection[int] = ()) -> str:
    """Returns what else has used or slowed the GPU for so many seconds up to now, in words.

    `tenants` are processes that paused meanwhile, which do not count, nor their descendants. Empty:
    nothing, or not known, as on a CPU, a part of a GPU, and of processes in a container.
    """
    began_us = int(1e6 * (time.time() - for_s))
    samples = ask_nvml(device, "nvmlDeviceGetProcessUtilization", began_us) or ()
    running = ask_nvml(device, "nvmlDeviceGetComputeRunningProcesses") or ()
    reasons = ask_nvml(device, "nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    # The driver's first sample may cover what came before, and some of its values are beyond 100 %.
    since_us = began_us + 1e6 * SAMPLE_S
    used = [each for each in samples if each.timeStamp >= since_us and 0 < each.smUtil <= 100]
    times = Counter(each.pid for each in used)
    others = {each.pid for each in used if each.smUtil >= LEAST_USE or times[each.pid] > 1}
    is_known, ours = os.getpid() in (each.pid for each in running), {os.getpid(), *tenants}
    others = {pid for pid in others if is_known and not _is_of(pid, ours)}
    seen = [f"process {pid} used the GPU" for pid in sorted(others)]
    return ", ".join([*seen, *(CLOCK_REASONS[bit] for bit in SLOWED if reasons & bit)])


def _is_of(pid: int, families: Collection[int]) -> bool:
    parents = list[psutil.Process]()
    with suppress(psutil.Error):
        parents = psutil.Process(pid).parents()
    return not {pid, *(each.pid for each in parents)}.isdisjoint(families)


def ask_nvml(device: torch.device, question: str, *given: object, of_whole: bool = False) -> Any:
    """Returns NVML's answer to a question such as `nvmlDeviceGetUtilizationRates`.

    `of_whole` asks the whole GPU where the device is a part of it. None: there is no answer, as on
    a CPU, without an NVIDIA driver, and often for a part of a GPU.
    """
    if device.type != "cuda":
        return None
    return _ask(lambda nvml: getattr(nvml, question)(_handle(nvml, device, of_whole), *given))


def _ask(question: Callable[[Any], Any]) -> Any:
    """Returns what the open binding answers; None if there is no driver, or none that answers."""
    try:
        import pynvml

        _open(pynvml)
        return question(pynvml)
    # AttributeError: the binding is older than the question.
    except (ImportError, RuntimeError, AttributeError):
        return None
    # The second is of a driver that is older than the binding; it is not an NVMLError.
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        return None


@functools.cache
def _open(nvml: ModuleType) -> None:
    nvml.nvmlInit()


def _handle(nvml: ModuleType, device: torch.device, of_whole: bool) -> Any:
    if not of_whole:
        return _found(nvml, "nvmlDeviceGetHandleByUUID", gpu_uuid(device))
    # A MIG instance has a UUID of its own, but its GPU's PCI address.
    at: Any = torch.cuda.get_device_properties(device)
    address = f"{at.pci_domain_id:08X}:{at.pci_bus_id:02X}:{at.pci_device_id:02X}.0"
    return _found(nvml, "nvmlDeviceGetHandleByPciBusId", address)


@functools.cache
def _found(nvml: ModuleType, finder: str, name: str) -> Any:
    return getattr(nvml, finder)(name)


def driver_version() -> str | None:
    version: str | None = _ask(lambda nvml: nvml.nvmlSystemGetDriverVersion())
    return version


def compute_mode(device: torch.device) -> str | None:
    return _named(ask_nvml(device, "nvmlDeviceGetComputeMode", of_whole=True), COMPUTE_MODES)


def _named(number: int | Sequence[int] | None, names: Sequence[str]) -> str | None:
    now = number[0] if isinstance(number, Sequence) else number
    return names[now] if now is not None and now < len(names) else None


def clock_reasons(mask: int) -> tuple[str, ...]:
    return tuple(name for bit, name in CLOCK_REASONS.items() if mask & bit)


def cudnn_version(version: int | None) -> str | None:
    """Returns `9.26.0` for 92600, and `8.9.2` for 8902, as cuDNN counted before 9."""
    if version is None:
        return None
    major, rest = divmod(version, 10_000 if version >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def is_virtual_machine(cpuinfo: str) -> bool | None:
    found = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return "hypervisor" in found[1].split() if found else None


def cpu_quota(cpu_max: str | None) -> float | None:
    """Returns the cores' worth of time from cgroup's `cpu.max`, such as `200000 100000` [µs]."""
    found = re.fullmatch(r"(\d+) (\d+)", cpu_max or "")
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None


def cpu_turbo(sys_cpu: Path) -> bool | None:
    no_turbo = read_text(sys_cpu / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == "0"
    boost = read_text(sys_cpu / "cpufreq/boost")
    return None if boost is None else boost == "1"


def cpu_throttle_count(sys_cpu: Path) -> int | None:
    files = sys_cpu.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    counts = [int(text) for text in map(read_text, files) if text is not None]
    return sum(counts) if counts else None


def container_id(*, cgroup: str, mountinfo: str) -> str | None:
    # With version 2 of cgroup a container often sees `0::/` alone, and only the files that Docker
    # and Podman mount into it name it.
    found = re.search(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", cgroup)
    found = found or re.search(r"(?<=containers/)[0-9a-f]{64}(?=/)", mountinfo)
    return found[0] if found else None


def read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def describe_gpu(device: torch.device) -> GpuFacts:
    if device.type != "cuda":
        return NO_GPU

    ask = functools.partial(ask_nvml, device, of_whole=True)

    def number(question: str, *given: object, per: float = 1.0) -> float | None:
        found = ask(question, *given)
        return None if found is None else found / per

    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    return GpuFacts(
        name=torch.cuda.get_device_name(device),
        uuid=gpu_uuid(device),
        power_limit_w=number("nvmlDeviceGetPowerManagementLimit", per=1000),
        sm_clock_mhz=number("nvmlDeviceGetClockInfo", SM),
        memory_clock_mhz=number("nvmlDeviceGetClockInfo", MEMORY),
        max_sm_clock_mhz=number("nvmlDeviceGetMaxClockInfo", SM),
        max_memory_clock_mhz=number("nvmlDeviceGetMaxClockInfo", MEMORY),
        clock_reasons=None if reasons is None else clock_reasons(reasons),
        mig_mode=_named(ask("nvmlDeviceGetMigMode"), OFF_OR_ON),
        mps=find_mps().runs,
        persistence_mode=_named(ask("nvmlDeviceGetPersistenceMode"), OFF_OR_ON),
        compute_mode=compute_mode(device),
        ecc_mode=_named(ask("nvmlDeviceGetEccMode"), OFF_OR_ON),
        driver=driver_version(),
    )


def _cpu_facts() -> CpuFacts:
    load: tuple[float, ...] = ()
    with suppress(OSError):
        load = os.getloadavg()
    return CpuFacts(
        name=cpu_name(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=psutil.cpu_count(),
        # Not on every system, and a container's cores are not all of the machine's.
        usable_cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        quota=cpu_quota(read_text(Path("/sys/fs/cgroup/cpu.max"))),
        governor=read_text(SYS_CPU / "cpu0/cpufreq/scaling_governor"),
        turbo=cpu_turbo(SYS_CPU),
        load_average=load[0] if load else None,
    )


def _software_facts(device: torch.device) -> SoftwareFacts:
    is_cuda = device.type == "cuda"
    cudnn: Callable[[], int | None] = torch.backends.cudnn.version
    return SoftwareFacts(
        torch=torch.__version__,
        cuda=torch.version.cuda if is_cuda else None,
        cudnn=cudnn_version(cudnn()) if is_cuda else None,
        timm=installed_version("timm"),
        python=platform.python_version(),
        platform=platform.platform(),
    )


def gpu_uuid(device: torch.device) -> str:
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return visible_mig(os.environ.get("CUDA_VISIBLE_DEVICES", ""), index) or f"GPU-{uuid}"


def visible_mig(visible: str, index: int) -> str | None:
    names = [name.strip() for name in visible.split(",")]
    name = names[index] if index < len(names) else ""
    return name if name.startswith("MIG-") else None
