"""Settings of a GPU that records carry, and those that tell step times apart."""

from pathlib import Path

import pytest
import torch
from helpers.runtime.gpus import H200, MISMATCH, NO_DRIVER, UUID, fake_nvidia_smi, put_driver
from helpers.training.tiny import CPU, make_recipe, make_splits

from tune_speed.cli.checks import CHECKS
from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.speedups.base import Shape
from tune_speed.runtime import device_settings as settings
from tune_speed.runtime.hardware import GPU_FIELDS, GpuFacts, describe_gpu, gpu_facts
from tune_speed.training.throughput import step_key

CUDA = torch.device("cuda", 0)
MODES = f"{UUID}, 00000000:18:00.0, 570.133.20, Default"


@pytest.fixture
def h200(one_h200: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `one_h200`, with its driver and none of the variables that change its settings."""
    for name in (*settings.ALLOCATOR_VARIABLES, settings.TF32_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    fake_nvidia_smi(one_h200, {"compute_mode": MODES, "ecc.mode.current": H200})
    settings._of_driver.cache_clear()
    return one_h200


def key() -> str:
    return step_key(
        make_recipe(model=ResNet20()), make_splits(), Shape(8, 8), num_train=24, device=CUDA
    )


def test_cpu_has_none() -> None:
    assert settings.device_settings(CPU) == settings.speed_settings(CPU) == {}


@pytest.mark.usefixtures("h200")
def test_records_say_how_a_gpu_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert settings.device_settings(CUDA) == {
        "tf32_matmul": "False",
        "tf32_conv": "True",
        "tf32_override": "none",
        "cudnn": "True",
        "cudnn_benchmark": "True",
        "cudnn_deterministic": str(torch.backends.cudnn.deterministic),
        "allocator": "expandable_segments:True",
        "driver": "570.133.20",
        "compute_mode": "Default",
    }


@pytest.mark.usefixtures("h200")
def test_settings_that_change_speed_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [key()]
    with monkeypatch.context() as changed:
        changed.setenv("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync")
        keys.append(key())
    with monkeypatch.context() as changed:
        changed.setenv("NVIDIA_TF32_OVERRIDE", "0")
        keys.append(key())
    with monkeypatch.context() as changed:
        changed.setattr(torch.backends.cudnn, "allow_tf32", False)
        keys.append(key())
    assert len({*keys}) == 4 and key() == keys[0]


def test_driver_changes_the_key_and_the_compute_mode_does_not(h200: Path) -> None:
    keys = []
    for modes in (MODES, MODES.replace("570", "580"), MODES.replace("Default", "Prohibited")):
        fake_nvidia_smi(h200, {"compute_mode": modes})
        settings._of_driver.cache_clear()
        keys.append(key())
    assert keys[1] != keys[0] == keys[2]


@pytest.mark.usefixtures("h200")
def test_threads_of_the_host_are_in_a_gpus_key() -> None:
    before, keys = torch.get_num_threads(), set[str]()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            keys.add(key())
    finally:
        torch.set_num_threads(before)
    assert len(keys) == 2


@pytest.mark.usefixtures("h200")
def test_modes_are_those_that_nvidia_smi_tells() -> None:
    facts = describe_gpu(CUDA)
    assert settings.describe_modes(facts) == (
        "compute mode Default, MPS off, MIG Disabled, persistence Enabled, ECC Enabled"
    )
    assert settings.why_not_shared(facts) is None


def facts_of(mode: str, *, mps: bool = False) -> GpuFacts:
    row = dict(zip(GPU_FIELDS, [""] * len(GPU_FIELDS), strict=True), compute_mode=mode)
    return gpu_facts(row, mps=mps)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (facts_of("Exclusive_Process"), "unfit for sharing: it takes one process"),
        (facts_of("Prohibited"), "no process can use it"),
        (facts_of("Prohibited", mps=True), "no process can use it"),
    ],
)
def test_gpu_that_trials_cannot_share_says_why(facts: GpuFacts, reason: str) -> None:
    assert (settings.why_not_shared(facts) or "").startswith(reason)


def test_exclusive_gpu_is_shared_through_mps() -> None:
    assert settings.why_not_shared(facts_of("Exclusive_Process", mps=True)) is None
    assert settings.why_not_shared(gpu_facts({})) is None


@pytest.mark.parametrize(("mode", "is_ok"), [("Default", True), ("Exclusive_Process", False)])
def test_doctor_shows_each_gpus_modes(
    h200: Path, monkeypatch: pytest.MonkeyPatch, mode: str, is_ok: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    fake_nvidia_smi(h200, {"ecc.mode.current": H200.replace("Default", mode)})
    found = CHECKS["GPU modes"]()
    assert found[0] is is_ok and f"compute mode {mode}" in found[1]
    assert ("unfit for sharing" in found[1]) is not is_ok


@pytest.mark.parametrize("is_gpu_there", [False, True])
@pytest.mark.parametrize("failure", [NO_DRIVER, MISMATCH], ids=str)
def test_doctor_says_why_nvml_cannot_be_read_which_is_a_problem_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, is_gpu_there: bool
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_gpu_there)
    put_driver(monkeypatch, {}, init=failure)
    is_ok, found = CHECKS["NVML"]()
    assert is_ok is not is_gpu_there and found.startswith(str(failure))


def test_doctor_says_what_nvml_knows_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a part of a GPU, which has no energy of its own."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    put_driver(monkeypatch, {"nvmlDeviceGetComputeRunningProcesses": []})
    is_ok, found = CHECKS["NVML"]()
    assert is_ok and "energy of 0, use of 0, processes of 1" in found
