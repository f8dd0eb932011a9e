"""What tests of the machine share."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from helpers.runtime.gpus import UUID

from tune_speed.runtime import cuda_context


@pytest.fixture
def one_h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """torch and nvidia-smi as on a machine with one H200; its nvidia-smi can be replaced."""

    class Properties:
        uuid = UUID.removeprefix("GPU-")
        total_memory = 141 * 2**30
        pci_domain_id, pci_bus_id, pci_device_id = 0, 0x18, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    # Tests of MPS beside this one run a script of its daemon's name.
    monkeypatch.setattr(psutil, "process_iter", lambda fields: ())
    # Contexts that other tests measured are in the session's cache, and in this process.
    cuda_context.context_gib.cache_clear()
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    yield tmp_path
    cuda_context.context_gib.cache_clear()
