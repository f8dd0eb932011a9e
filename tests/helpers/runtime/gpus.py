"""A GPU that NVML's real binding describes: its answers are made up."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

ADDRESS = "00000000:18:00.0"
NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
NOT_FOUND = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
NO_DRIVER = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
MISMATCH = pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
TOO_OLD = pynvml.NVMLLibraryMismatchError("pyNVML version does not match")
FAILURES = (NOT_SUPPORTED, NOT_FOUND, NO_DRIVER, MISMATCH, TOO_OLD)


def put_driver(
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, Any],
    *,
    uuid: str = "GPU-7",
    init: Exception | None = None,
) -> None:
    """Puts a driver in place; what `answers` lacks is not supported, an exception is raised.

    An answer is a value, or a call that gets what follows the handle; opening raises `init`. The
    GPU is found by its UUID and by its address.
    """
    module: Any = ModuleType("pynvml")
    vars(module).update(vars(pynvml))

    def question(name: str) -> Any:
        def answer(handle: str, *given: object) -> Any:
            assert handle == uuid
            found = answers.get(name, NOT_SUPPORTED)
            if isinstance(found, Exception):
                raise found
            return found(*given) if callable(found) else found

        return answer

    def handle_of(asked: str) -> str:
        if asked not in (uuid, ADDRESS):
            raise NOT_FOUND
        return uuid

    def open_library() -> None:
        if init is not None:
            raise init

    for name in vars(pynvml):
        if name.startswith("nvmlDeviceGet"):
            setattr(module, name, question(name))
    module.nvmlInit = open_library
    module.nvmlDeviceGetHandleByUUID = module.nvmlDeviceGetHandleByPciBusId = handle_of
    module.nvmlSystemGetDriverVersion = lambda: question("nvmlSystemGetDriverVersion")(uuid)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    bus = {"pci_domain_id": 0, "pci_bus_id": 0x18, "pci_device_id": 0}
    properties = SimpleNamespace(uuid=uuid.removeprefix("GPU-"), total_memory=141 * 2**30, **bus)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


# --- A machine with an H200

UUID = "GPU-4f0c1f6e-7a5b-2d0c-9b61-0c8d3a5e7f12"
DRIVER, COMPUTE_MODE = "nvmlSystemGetDriverVersion", "nvmlDeviceGetComputeMode"
H200: dict[str, Any] = {
    DRIVER: "570.133.20",
    "nvmlDeviceGetPowerManagementLimit": 700_000,
    "nvmlDeviceGetClockInfo": {1: 1980, 2: 3201}.__getitem__,
    "nvmlDeviceGetMaxClockInfo": {1: 1985, 2: 3205}.__getitem__,
    "nvmlDeviceGetMigMode": [0, 1],
    "nvmlDeviceGetPersistenceMode": 1,
    COMPUTE_MODE: 0,
    "nvmlDeviceGetEccMode": [1, 0],
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
}


def put_h200(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Puts its driver in place, with some answers changed."""
    put_driver(monkeypatch, {**H200, **changes}, uuid=UUID)
