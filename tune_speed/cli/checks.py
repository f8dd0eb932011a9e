"""The command `doctor`: what would keep a search from running on this machine."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import psutil
import typer

from tune_speed.cli.common import NOT_REACHED, JsonOption, PluginOption, print_rows, say_json, store
from tune_speed.core.errors import TuneSpeedError
from tune_speed.core.folders import default_cache_dir, studies_folder
from tune_speed.core.version import installed_version

GIB = 1024**3
MIN_FREE_GIB = 1.0
ASKED_OF_NVML = {
    "energy": "nvmlDeviceGetTotalEnergyConsumption",
    "use": "nvmlDeviceGetUtilizationRates",
    "processes": "nvmlDeviceGetComputeRunningProcesses",
}


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    is_ok: bool
    found: str


def run_checks() -> list[Finding]:
    findings = []
    for name, check in CHECKS.items():
        try:
            is_ok, found = check()
        # Broken installations are what this command is for: one failed check hides no other.
        except (TuneSpeedError, OSError, ImportError, RuntimeError) as error:
            is_ok, found = False, f"{type(error).__name__}: {error}"
        findings.append(Finding(name, is_ok, found))
    return findings


def _packages() -> tuple[bool, str]:
    names = ("tune_speed", "torch", "torchvision", "timm", "ray", "optuna", "mlflow")
    # From metadata: to import the libraries of a search takes 3.4 s, and one that is broken could
    # not be imported.
    versions = {name: installed_version(name) or "missing" for name in names}
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "missing" not in versions.values(), found


def _device() -> tuple[bool, str]:
    import torch

    from tune_speed.runtime.device import describe_device, resolve_device

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return True, f"{describe_device(resolve_device('auto'))}; CUDA devices: {count}"


def _gpu_modes() -> tuple[bool, str]:
    import torch

    from tune_speed.runtime.device_settings import describe_modes, why_not_shared
    from tune_speed.runtime.hardware import describe_gpu

    if not torch.cuda.is_available():
        return True, "no GPU"
    gpus = [describe_gpu(torch.device("cuda", i)) for i in range(torch.cuda.device_count())]
    found = ("; ".join(filter(None, [describe_modes(gpu), why_not_shared(gpu)])) for gpu in gpus)
    return not any(map(why_not_shared, gpus)), " | ".join(found)


def _nvml() -> tuple[bool, str]:
    import pynvml
    import torch

    from tune_speed.runtime.hardware import ask_nvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        has_gpu = torch.version.cuda is not None and torch.cuda.is_available()
        return not has_gpu, f"{error}: energy, use and processes of GPUs are not known"
    gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    known = (
        f"{what} of {sum(ask_nvml(gpu, question) is not None for gpu in gpus)}"
        for what, question in ASKED_OF_NVML.items()
    )
    return True, f"{len(gpus)} GPUs; can be read: {', '.join(known)}"


def _turnstile() -> tuple[bool, str]:
    from tune_speed.runtime.turnstile import Turnstile, default_folder

    with Turnstile.open("doctor") as turnstile:
        why_not = turnstile.why_not
    return why_not is None, why_not or f"locks in {default_folder()}: steps can be isolated"


def _sharing() -> tuple[bool, str]:
    import torch

    from tune_speed.runtime.mps import find_mps

    if not torch.cuda.is_available():
        return True, "trials share the cores of this CPU"
    mps = find_mps()
    how = "kernels of several overlap" if mps.runs else "a GPU gives its trials turns"
    return True, "; ".join(filter(None, [f"{mps.sharing}: {how}", mps.advice]))


def _memory() -> tuple[bool, str]:
    memory = psutil.virtual_memory()
    found = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    return memory.available > 2 * GIB, found


def _writable(folder: Path) -> tuple[bool, str]:
    # The folder need not be there yet: then its nearest parent is what a search writes to.
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    with tempfile.TemporaryFile(dir=existing):
        free_gib = shutil.disk_usage(existing).free / GIB
    return free_gib > MIN_FREE_GIB, f"{folder}: writable, {free_gib:.1f} GiB free"


def _shared_memory() -> tuple[bool, str]:
    # A Docker container has 64 MiB of it unless `--shm-size` says more.
    free_gib = shutil.disk_usage("/dev/shm").free / GIB
    return free_gib > 0.5, f"/dev/shm: {free_gib:.1f} GiB free (Ray's object store, loader workers)"


def _ray() -> tuple[bool, str]:
    from tune_speed.study.settings import ResourceConfig
    from tune_speed.tuning.ray import cluster

    cluster.connect(None, resources=ResourceConfig())
    try:
        return True, f"a local cluster starts; {cluster.node_cpus():g} CPUs"
    finally:
        cluster.disconnect()


def _mlflow() -> tuple[bool, str]:
    found = store()
    found.create()
    return True, str(found)


def _leftovers() -> tuple[bool, str]:
    from tune_speed.runtime.file_lock import leftovers

    def megabytes(folder: Path) -> float:
        files = (each for each in folder.rglob("*") if each.is_file() and not each.is_symlink())
        return sum(each.stat().st_size for each in files) / 1e6

    left = [(path, megabytes(path)) for path in leftovers()]
    if not left:
        return True, "nothing of killed sessions"
    named = ", ".join(f"{path} ({size:.1f} MB)" for path, size in left)
    return True, f"of killed sessions: {named}; `tune-speed doctor --clean` removes them"


CHECKS: dict[str, Callable[[], tuple[bool, str]]] = {
    "python": lambda: (sys.version_info[:2] in ((3, 11), (3, 12)), platform.python_version()),
    "packages": _packages,
    "device": _device,
    "cores": lambda: (
        True,
        # `os.cpu_count` counts the machine's cores, of which a container or a job may have few.
        f"{len(os.sched_getaffinity(0))} usable, load {os.getloadavg()[0]:.1f}",
    ),
    "GPU modes": _gpu_modes,
    "NVML": _nvml,
    "turnstile": _turnstile,
    "sharing": _sharing,
    "memory": _memory,
    "shared memory": _shared_memory,
    "studies folder": lambda: _writable(studies_folder()),
    "data cache": lambda: _writable(default_cache_dir()),
    "leftovers": _leftovers,
    "ray": _ray,
    "mlflow": _mlflow,
}


def doctor(
    plugin: PluginOption = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove what killed sessions left, first.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine: versions, devices, memory, disk, caches, Ray and MLflow.

    Example: tune-speed doctor
    """
    from tune_speed.runtime.file_lock import remove_leftovers

    if clean:
        remove_leftovers()
    findings = run_checks()
    if as_json:
        say_json([finding._asdict() for finding in findings])
    else:
        rows = [
            {"check": f.check, "state": "ok" if f.is_ok else "PROBLEM", "found": f.found}
            for f in findings
        ]
        print_rows(rows, title="doctor")
    if not all(finding.is_ok for finding in findings):
        raise typer.Exit(NOT_REACHED)
