"""A GPU that NVML's real binding, or nvidia-smi, describes: their answers are made up."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

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

    An answer is a value, or a call that gets what follows the handle; opening raises `init`.
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
        if asked != uuid:
            raise NOT_FOUND
        return asked

    def open_library() -> None:
        if init is not None:
            raise init

    for name in vars(pynvml):
        if name.startswith("nvmlDeviceGet"):
            setattr(module, name, question(name))
    module.nvmlInit, module.nvmlDeviceGetHandleByUUID = open_library, handle_of
    properties = SimpleNamespace(uuid=uuid.removeprefix("GPU-"))
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


# --- A machine with an H200, as nvidia-smi writes it

UUID = "GPU-4f0c1f6e-7a5b-2d0c-9b61-0c8d3a5e7f12"
H200 = (
    f"{UUID}, 00000000:18:00.0, NVIDIA H200, 570.133.20, 700.00, 1980, 3201, 1980, 3201,"
    " Disabled, Enabled, Default, Enabled\n"
)


def fake_nvidia_smi(folder: Path, answers: dict[str, str]) -> None:
    """Puts a program there that answers queries by their last field, and refuses the others."""
    cases = "".join(
        f'*{field}) printf "%s\\n" "{text.strip()}";;\n' for field, text in answers.items()
    )
    path = folder / "nvidia-smi"
    path.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}*) echo invalid; exit 2;;\nesac\n')
    path.chmod(0o755)
