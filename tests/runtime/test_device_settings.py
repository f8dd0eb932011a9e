"""Settings of a GPU that records carry, and those that tell step times apart."""

import pytest
import torch
from helpers.runtime.gpus import COMPUTE_MODE, DRIVER, MISMATCH, NO_DRIVER, put_driver, put_h200
from helpers.training.tiny import CPU, make_recipe, make_splits

from tune_speed.cli.checks import CHECKS
from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.speedups.base import Shape
from tune_speed.runtime import device_settings as settings
from tune_speed.runtime.hardware import NO_GPU, describe_gpu
from tune_speed.training.throughput import step_key

CUDA = torch.device("cuda", 0)


@pytest.fixture
def h200(one_h200: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `one_h200`, with its driver and none of the variables that change its settings."""
    for name in (*settings.ALLOCATOR_VARIABLES, settings.TF32_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    settings._of_driver.cache_clear()


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


@pytest.mark.usefixtures("h200")
def test_driver_changes_the_key_and_the_compute_mode_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = []
    for changes in ({}, {DRIVER: "580.133.20"}, {COMPUTE_MODE: 2}):
        put_h200(monkeypatch, **changes)
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
def test_modes_are_those_that_nvml_tells() -> None:
    facts = describe_gpu(CUDA)
    assert settings.describe_modes(facts) == (
        "compute mode Default, MPS off, MIG Disabled, persistence Enabled, ECC Enabled"
    )
    assert settings.why_not_shared(facts) is None


@pytest.mark.parametrize(
    ("mode", "has_mps", "reason"),
    [
        (None, False, None),
        ("Default", False, None),
        ("Exclusive_Process", True, None),
        ("Exclusive_Process", False, "unfit for sharing: it takes one process"),
        ("Prohibited", False, "no process can use it"),
        ("Prohibited", True, "no process can use it"),
    ],
)
def test_gpu_is_shared_where_its_compute_mode_allows_it(
    mode: str | None, has_mps: bool, reason: str | None
) -> None:
    gpu = NO_GPU.model_copy(update={"compute_mode": mode, "mps": has_mps})
    found = settings.why_not_shared(gpu)
    assert (found is None) == (reason is None) and (found or "").startswith(reason or "")
    modes = f"compute mode {mode or 'not known'}, MPS {'on' if has_mps else 'off'}, MIG not known"
    assert settings.describe_modes(gpu).startswith(modes)


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("mode", "is_ok"), [("Default", True), ("Exclusive_Process", False)])
def test_doctor_shows_each_gpus_modes(
    monkeypatch: pytest.MonkeyPatch, mode: str, is_ok: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    put_h200(monkeypatch, **{COMPUTE_MODE: 0 if is_ok else 3})
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
