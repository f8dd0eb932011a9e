"""Facts of the machine: parsed from texts of Linux and answers of NVML, and read here."""

import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from helpers.runtime.gpus import FAILURES, NO_DRIVER, NOT_FOUND, UUID, put_driver, put_h200
from helpers.training.tiny import CPU

from tune_speed.experiments.certification.certificate import was_throttled
from tune_speed.runtime.cpu_name import cpu_model
from tune_speed.runtime.device import device_key
from tune_speed.runtime.hardware import (
    DIGEST_VARIABLE,
    SystemFacts,
    ask_nvml,
    clock_reasons,
    container_id,
    cpu_quota,
    cpu_throttle_count,
    cpu_turbo,
    cudnn_version,
    describe_gpu,
    describe_system,
    is_virtual_machine,
    strangers,
    throttle_count,
    visible_mig,
)

DOCKER_ID = "3e1f" * 16
GPU = torch.device("cuda", 0)
NOBODY = 2**22 + 5
"""A number that no process has."""


@pytest.mark.usefixtures("one_h200")
def test_every_answer_of_a_gpu_is_read() -> None:
    facts = describe_gpu(GPU)
    assert facts.model_dump() == {
        "name": "NVIDIA H200",
        "uuid": UUID,
        "power_limit_w": 700.0,
        "sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "max_sm_clock_mhz": 1985.0,
        "max_memory_clock_mhz": 3205.0,
        "clock_reasons": ("sw_power_cap",),
        "mig_mode": "Disabled",
        "mps": False,
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "ecc_mode": "Enabled",
        "driver": "570.133.20",
    }
    older = facts.model_dump(exclude={"compute_mode", "ecc_mode"})
    read = type(facts).model_validate(older)
    assert read == facts.model_copy(update={"compute_mode": None, "ecc_mode": None})


@pytest.mark.usefixtures("one_h200")
@pytest.mark.parametrize("init", [None, NO_DRIVER], ids=["silent", "no driver"])
def test_what_a_gpu_does_not_tell_is_none(
    monkeypatch: pytest.MonkeyPatch, init: Exception | None
) -> None:
    put_driver(monkeypatch, {}, uuid=UUID, init=init)
    known = describe_gpu(GPU).model_dump(exclude_none=True)
    assert known == {"name": "NVIDIA H200", "uuid": UUID, "mps": False}
    assert throttle_count(GPU) is None


@pytest.mark.usefixtures("one_h200")
def test_part_of_a_gpu_has_its_own_uuid_and_the_facts_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-ab/1/0")
    facts = describe_gpu(GPU)
    assert (facts.name, facts.uuid, facts.power_limit_w) == ("NVIDIA H200", "MIG-ab/1/0", 700.0)
    assert ask_nvml(GPU, "nvmlDeviceGetEccMode") is None


def test_reasons_have_the_names_of_nvml_in_the_order_of_their_bits() -> None:
    names = (
        "gpu_idle",
        "applications_clocks_setting",
        "sw_power_cap",
        "hw_slowdown",
        "sync_boost",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        "display_clock_setting",
    )
    assert clock_reasons(0x1FF) == names and clock_reasons(0) == ()
    assert clock_reasons(0x44) == ("sw_power_cap", "hw_thermal_slowdown")


@pytest.mark.parametrize(
    ("number", "version"), [(92600, "9.26.0"), (90100, "9.1.0"), (8902, "8.9.2"), (None, None)]
)
def test_cudnn_version_is_written_as_nvidia_does(number: int | None, version: str | None) -> None:
    assert cudnn_version(number) == version


@pytest.mark.parametrize(
    ("visible", "index", "mig"),
    [("", 0, None), ("0,1", 1, None), ("0, MIG-ab/1/0", 1, "MIG-ab/1/0"), ("MIG-ab", 1, None)],
)
def test_mig_instance_is_the_visible_one(visible: str, index: int, mig: str | None) -> None:
    assert visible_mig(visible, index) == mig


def test_cpu_is_read_from_cpuinfo() -> None:
    virtual = "processor\t: 0\nmodel name\t: AMD EPYC 9654\nflags\t\t: fpu hypervisor lahf_lm\n"
    assert cpu_model(virtual) == "AMD EPYC 9654" and is_virtual_machine(virtual)
    assert is_virtual_machine("flags\t\t: fpu lahf_lm\n") is False
    assert cpu_model("") is None and is_virtual_machine("Features: fp\n") is None


@pytest.mark.parametrize(
    ("text", "cores"),
    [("200000 100000", 2.0), ("50000 100000", 0.5), ("max 100000", None), (None, None)],
)
def test_quota_is_in_cores(text: str | None, cores: float | None) -> None:
    assert cpu_quota(text) == cores


@pytest.mark.parametrize(
    ("file", "text", "turbo"),
    [
        ("intel_pstate/no_turbo", "0\n", True),
        ("intel_pstate/no_turbo", "1\n", False),
        ("cpufreq/boost", "1\n", True),
        ("cpufreq/boost", "0\n", False),
        ("other", "1\n", None),
    ],
)
def test_turbo_is_what_the_kernels_switch_says(
    tmp_path: Path, file: str, text: str, turbo: bool | None
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert cpu_turbo(tmp_path) is turbo


def test_throttling_is_counted_over_all_cores(tmp_path: Path) -> None:
    assert cpu_throttle_count(tmp_path) is None
    for core, count in enumerate((3, 0, 4)):
        folder = tmp_path / f"cpu{core}" / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{count}\n")
    assert cpu_throttle_count(tmp_path) == 7


def test_throttled_means_that_the_count_rose() -> None:
    assert was_throttled(3, 4) is True and was_throttled(3, 3) is False
    assert was_throttled(None, 4) is None and was_throttled(3, None) is None


@pytest.mark.parametrize(
    ("cgroup", "mountinfo"),
    [
        (f"12:memory:/docker/{DOCKER_ID}\n", ""),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{DOCKER_ID}.scope\n", ""),
        ("0::/\n", f"9 8 0:1 /var/lib/docker/containers/{DOCKER_ID}/hostname /etc/hostname rw\n"),
        ("", f"9 8 0:1 /overlay-containers/{DOCKER_ID}/userdata/hosts /etc/hosts rw\n"),
    ],
)
def test_container_is_known_by_its_id(cgroup: str, mountinfo: str) -> None:
    assert container_id(cgroup=cgroup, mountinfo=mountinfo) == DOCKER_ID


def test_layers_of_an_image_are_not_a_container() -> None:
    overlay = f"1 0 0:1 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/{DOCKER_ID}/d"
    assert container_id(cgroup="0::/user.slice\n", mountinfo=overlay) is None


def test_this_machine_is_described_as_other_sources_say() -> None:
    facts = describe_system(CPU)
    assert facts.cpu.usable_cores == len(psutil.Process().cpu_affinity())
    assert facts.cpu.logical_cores == os.cpu_count()
    assert 0 < facts.memory_gib <= psutil.virtual_memory().total / 2**30
    assert facts.software.torch == torch.__version__
    assert facts.software.timm == metadata.version("timm")
    assert platform.release() in facts.software.platform and facts.cpu.name in facts.device
    assert facts.device_key == device_key(CPU)
    assert SystemFacts.model_validate_json(facts.model_dump_json()) == facts


def test_cpu_has_no_gpu_and_no_cuda() -> None:
    facts = describe_system(CPU)
    assert set(facts.gpu.model_dump().values()) == {None}
    assert (facts.software.cuda, facts.software.cudnn) == (None, None)


def test_image_digest_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIGEST_VARIABLE, "sha256:" + "ab" * 32)
    assert describe_system(CPU).container_digest == "sha256:" + "ab" * 32
    monkeypatch.setenv(DIGEST_VARIABLE, "")
    assert describe_system(CPU).container_digest is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_is_described_as_torch_says() -> None:
    device = torch.device("cuda")
    facts = describe_system(device)
    assert facts.gpu.name == torch.cuda.get_device_name(device)
    assert (facts.gpu.uuid or "").startswith(("GPU-", "MIG-"))
    assert facts.software.cuda == torch.version.cuda and facts.software.cudnn is not None


@pytest.mark.usefixtures("one_h200")
def test_slowdown_of_a_gpu_is_added_up_over_its_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    def counters(fields: Sequence[int]) -> list[SimpleNamespace]:
        assert fields == [269, 270, 271]
        found = [(0, 1_200_000), (3, 9), (0, 34_500)]
        return [SimpleNamespace(nvmlReturn=r, value=SimpleNamespace(ullVal=v)) for r, v in found]

    put_h200(monkeypatch, nvmlDeviceGetFieldValues=counters)
    assert throttle_count(GPU) == 1234
    monkeypatch.delattr(sys.modules["pynvml"], "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN")
    assert throttle_count(GPU) is None


# --- Strangers on a GPU


def nvml(
    monkeypatch: pytest.MonkeyPatch,
    *used: tuple[int, int, float],
    running: Sequence[int] = (os.getpid(),),
    reasons: int = 0,
    **other: object,
) -> None:
    """Puts a driver in place: its samples by process, share of the GPU [%] and age [s]."""

    def samples(since_us: int) -> list[SimpleNamespace]:
        assert 0 <= time.time() - 1.0 - since_us / 1e6 < 0.4
        if not used:
            raise NOT_FOUND
        now_us = 1e6 * time.time()
        return [
            SimpleNamespace(pid=p, smUtil=u, timeStamp=now_us - 1e6 * age) for p, u, age in used
        ]

    answers = {
        "nvmlDeviceGetCurrentClocksThrottleReasons": reasons,
        "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=pid) for pid in running],
        "nvmlDeviceGetProcessUtilization": samples,
    }
    put_driver(monkeypatch, {**answers, **other}, uuid=UUID)


def seen(device: str = "cuda:0", *, tenants: Sequence[int] = ()) -> str:
    return strangers(torch.device(device), for_s=1.0, tenants=tenants)


@pytest.mark.usefixtures("one_h200")
def test_processes_of_others_that_used_the_gpu_are_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml(monkeypatch, (os.getpid(), 90, 0.1), (NOBODY, 12, 0.1), (NOBODY + 1, 0, 0.1))
    assert seen() == f"process {NOBODY} used the GPU"
    assert seen("cpu") == ""
    nvml(monkeypatch)
    assert seen() == ""


@pytest.mark.usefixtures("one_h200")
@pytest.mark.parametrize(
    ("samples", "is_seen"),
    [
        ([(95, 0.95)], False),  # Of before the window, for the most part.
        ([(95, 0.95), (95, 0.3)], True),
        ([(3, 0.1)], False),
        ([(3, 0.1), (3, 0.4)], True),
        ([(5, 0.1)], True),
        ([(101, 0.1), (4_294_967_295, 0.2)], False),  # Which drivers answer at times.
    ],
)
def test_one_who_used_the_gpu_within_the_window_is_seen_and_only_then(
    monkeypatch: pytest.MonkeyPatch, samples: list[tuple[int, float]], is_seen: bool
) -> None:
    nvml(monkeypatch, *((NOBODY, share, age) for share, age in samples))
    assert bool(seen()) is is_seen


@pytest.mark.usefixtures("one_h200")
def test_cotenants_that_paused_and_their_ranks_are_no_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This process stands in for a tenant's rank, and its parent for the tenant."""
    tenant, rank = os.getppid(), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: NOBODY + 1)
    nvml(monkeypatch, (rank, 90, 0.1), (NOBODY, 90, 0.1), running=(NOBODY + 1,))
    assert seen() == f"process {rank} used the GPU, process {NOBODY} used the GPU"
    assert seen(tenants=(tenant,)) == f"process {NOBODY} used the GPU"
    assert seen(tenants=(rank, NOBODY)) == ""


@pytest.mark.usefixtures("one_h200")
def test_in_a_container_processes_have_other_numbers_and_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml(monkeypatch, (NOBODY, 90, 0.1), running=(NOBODY,))
    assert seen() == ""


@pytest.mark.usefixtures("one_h200")
def test_clocks_held_down_for_heat_disturb_and_the_usual_power_cap_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml(monkeypatch, reasons=0x4 | 0x40)
    assert seen() == "hw_thermal_slowdown"
    nvml(monkeypatch, reasons=0x4)
    assert seen() == ""


@pytest.mark.usefixtures("one_h200")
@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_what_a_driver_does_not_answer_is_not_known_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Of a part of a GPU, without a driver, and with one of another version than the library."""
    question = "nvmlDeviceGetComputeRunningProcesses"
    nvml(monkeypatch, (NOBODY, 90, 0.1), reasons=0x40, **{question: failure})
    assert ask_nvml(torch.device("cuda:0"), question) is None
    assert seen() == "hw_thermal_slowdown"
    put_driver(monkeypatch, {question: []}, uuid=UUID, init=failure)
    assert ask_nvml(torch.device("cuda:0"), question) is None
    assert seen() == ""


@pytest.mark.usefixtures("one_h200")
def test_without_its_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert seen() == ""
