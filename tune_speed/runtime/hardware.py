"""The machine that a time was measured on: what a reader needs to judge it or to measure again.

Nothing here raises: what a machine does not have or does not report is None.
"""

import os
import platform
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
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


NVIDIA_SMI_TIMEOUT_S = 10.0
"""It takes seconds where the driver does not stay loaded."""
DIGEST_VARIABLE = "TUNE_SPEED_IMAGE_DIGEST"
SYS_CPU = Path("/sys/devices/system/cpu")

GPU_FIELDS = (
    "uuid",
    "pci.bus_id",
    "name",
    "driver_version",
    "power.limit",
    "clocks.current.sm",
    "clocks.current.memory",
    "clocks.max.sm",
    "clocks.max.memory",
    "mig.mode.current",
    "persistence_mode",
    "compute_mode",
    "ecc.mode.current",
)
# What holds clocks down, by its name since driver 535 and before.
REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
# Microseconds that a GPU was slowed down for; its ordinary power limit is not among them.
SLOWDOWN_FIELDS = tuple(
    f"clocks_event_reasons_counters.{name}"
    for name in ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
)
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

Row = Mapping[str, str]
"""One GPU's answers by field; what it does not know is left out."""


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

    On a CPU the number of such events over all cores, on a GPU microseconds. A higher count
    afterwards means that a measurement was throttled. None: not known, as in a virtual machine.
    """
    if device.type == "cuda":
        row = gpu_row(device, SLOWDOWN_FIELDS)
        return _total(row.get(field) for field in SLOWDOWN_FIELDS)
    return cpu_throttle_count(SYS_CPU)


def strangers(device: torch.device, *, for_s: float, tenants: Collection[int] = ()) -> str:
    """Returns what else has used or slowed the GPU for so many seconds up to now, in words.

    `tenants` are processes that paused meanwhile; they and their descendants do not count. Empty:
    nothing, or nothing that can be known, as on a CPU, a part of a GPU, and of processes in a
    container, which have other numbers outside.
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


def ask_nvml(device: torch.device, question: str, *given: object) -> Any:
    """Returns NVML's answer to a question such as `nvmlDeviceGetUtilizationRates`.

    None: there is none, as on a CPU, without an NVIDIA driver, and often for a part of a GPU.
    """
    if device.type != "cuda":
        return None
    try:
        import pynvml

        return getattr(pynvml, question)(_nvml_handle(pynvml, gpu_uuid(device)), *given)
    except (ImportError, RuntimeError):
        return None
    except pynvml.NVMLError:
        return None
    # Of a driver that is older than the binding; it is not an NVMLError.
    except pynvml.NVMLLibraryMismatchError:
        return None


@cache
def _nvml_handle(nvml: ModuleType, uuid: str) -> Any:
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByUUID(uuid)


def parse_gpu_rows(text: str, fields: Sequence[str]) -> list[Row]:
    """Returns one row a GPU from nvidia-smi's `--format=csv,noheader,nounits`.

    Lines of another length, such as warnings, are left out, and so are fields without an answer:
    `[N/A]`, `[Not Supported]`, `[Unknown Error]`.
    """
    lines = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [
        {
            field: cell
            for field, cell in zip(fields, cells, strict=True)
            if cell.upper() not in ("", "N/A") and not re.fullmatch(r"\[.*\]", cell)
        }
        for cells in lines
        if len(cells) == len(fields) and any(cells)
    ]


def choose_row(rows: Sequence[Row], *, uuid: str, bus_id: str | None) -> Row:
    """Returns the GPU with that UUID or PCI address, or else the only one; empty if unknown."""
    # A MIG instance has a UUID of its own, but its GPU's address.
    for field, wanted in (("uuid", uuid), ("pci.bus_id", bus_id)):
        found = [row for row in rows if row.get(field, "").lower() == (wanted or "").lower()]
        if wanted and found:
            return found[0]
    return rows[0] if len(rows) == 1 else {}


def gpu_facts(
    row: Row,
    *,
    name: str | None = None,
    uuid: str | None = None,
    clock_reasons: tuple[str, ...] | None = None,
    mps: bool | None = None,
) -> GpuFacts:
    """Returns the facts of a GPU: what torch says, and what nvidia-smi says in `row`."""
    return GpuFacts(
        name=name,
        uuid=uuid,
        power_limit_w=number(row.get("power.limit")),
        sm_clock_mhz=number(row.get("clocks.current.sm")),
        memory_clock_mhz=number(row.get("clocks.current.memory")),
        max_sm_clock_mhz=number(row.get("clocks.max.sm")),
        max_memory_clock_mhz=number(row.get("clocks.max.memory")),
        clock_reasons=clock_reasons,
        mig_mode=row.get("mig.mode.current"),
        mps=mps,
        persistence_mode=row.get("persistence_mode"),
        driver=row.get("driver_version"),
        compute_mode=row.get("compute_mode"),
        ecc_mode=row.get("ecc.mode.current"),
    )


def parse_clock_reasons(mask: str) -> tuple[str, ...] | None:
    """Returns what holds the clocks down from a mask such as `0x0000000000000004`."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return None
    return tuple(name for bit, name in CLOCK_REASONS.items() if bits & bit)


def number(cell: str | None) -> float | None:
    """Returns the number at the start of `cell`, or None if there is none."""
    found = re.match(r"\s*-?\d+(\.\d+)?", cell or "")
    return float(found[0]) if found else None


def cudnn_version(version: int | None) -> str | None:
    """Returns `9.26.0` for 92600, and `8.9.2` for 8902, as cuDNN counted before 9."""
    if version is None:
        return None
    major, rest = divmod(version, 10_000 if version >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def is_virtual_machine(cpuinfo: str) -> bool | None:
    """Returns whether the CPU says that a hypervisor runs below; None if it has no flags."""
    found = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return "hypervisor" in found[1].split() if found else None


def cpu_quota(cpu_max: str | None) -> float | None:
    """Returns the cores' worth of time from cgroup's `cpu.max`, such as `200000 100000` [µs]."""
    found = re.fullmatch(r"(\d+) (\d+)", cpu_max or "")
    return int(found[1]) / int(found[2]) if found and int(found[2]) else None


def cpu_turbo(sys_cpu: Path) -> bool | None:
    """Returns whether the CPU may exceed its base frequency; None if it is not known."""
    no_turbo = read_text(sys_cpu / "intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == "0"
    boost = read_text(sys_cpu / "cpufreq/boost")
    return None if boost is None else boost == "1"


def cpu_throttle_count(sys_cpu: Path) -> int | None:
    """Returns the throttling events of all cores; None where the kernel does not count them."""
    files = sys_cpu.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    return _total(map(read_text, files))


def _total(cells: Iterable[str | None]) -> int | None:
    known = [count for count in map(number, cells) if count is not None]
    return int(sum(known)) if known else None


def container_id(*, cgroup: str, mountinfo: str) -> str | None:
    """Returns the container's id, 64 hex digits, from texts of /proc/self."""
    # With version 2 of cgroup a container often sees `0::/` alone, and only the files that Docker
    # and Podman mount into it name it.
    found = re.search(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", cgroup)
    found = found or re.search(r"(?<=containers/)[0-9a-f]{64}(?=/)", mountinfo)
    return found[0] if found else None


def read_text(path: Path) -> str | None:
    """Returns the text of a file of the system, stripped; None if it is not there, or empty."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError:
        return None


def describe_gpu(device: torch.device) -> GpuFacts:
    """Returns the facts of the device; on a CPU all are None."""
    if device.type != "cuda":
        return gpu_facts({})
    # A query with a field that the driver does not know answers nothing, so each name by itself.
    masks = [gpu_row(device, (field,)).get(field) for field in REASON_FIELDS]
    mask = next((mask for mask in masks if mask is not None), None)
    return gpu_facts(
        gpu_row(device, GPU_FIELDS),
        name=torch.cuda.get_device_name(device),
        uuid=gpu_uuid(device),
        clock_reasons=None if mask is None else parse_clock_reasons(mask),
        mps=find_mps().runs,
    )


def _cpu_facts() -> CpuFacts:
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
        load_average=_load_average(),
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


def gpu_row(device: torch.device, fields: Sequence[str]) -> Row:
    """Returns what nvidia-smi says of `device`; empty if it is not there or lacks a field."""
    queried = tuple(dict.fromkeys(("uuid", "pci.bus_id", *fields)))
    rows = parse_gpu_rows(_nvidia_smi(queried), queried)
    return choose_row(rows, uuid=gpu_uuid(device), bus_id=_bus_id(device))


def _nvidia_smi(fields: Iterable[str]) -> str:
    query = f"--query-gpu={','.join(fields)}"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=NVIDIA_SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def gpu_uuid(device: torch.device) -> str:
    """Returns the UUID of the GPU, or of its MIG instance."""
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    return visible_mig(os.environ.get("CUDA_VISIBLE_DEVICES", ""), index) or f"GPU-{uuid}"


def visible_mig(visible: str, index: int) -> str | None:
    """Returns the MIG instance at `index` of CUDA_VISIBLE_DEVICES, or None."""
    names = [name.strip() for name in visible.split(",")]
    name = names[index] if index < len(names) else ""
    return name if name.startswith("MIG-") else None


def _bus_id(device: torch.device) -> str | None:
    """Returns the PCI address as nvidia-smi writes it, `00000000:18:00.0`; None in older torch."""
    found = torch.cuda.get_device_properties(device)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(found, name) for name in names):
        return None
    return "{:08X}:{:02X}:{:02X}.0".format(*(getattr(found, name) for name in names))


def _load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
