"""A machine with an H200, as NVML describes it."""

from typing import Any

import pytest
from nvml_double import put_driver

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
