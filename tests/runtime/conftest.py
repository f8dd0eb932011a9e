"""What tests of the machine share."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from helpers.runtime.gpus import put_h200

from tune_speed.runtime import cuda_context


@pytest.fixture
def one_h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    put_h200(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    # Tests of MPS beside this one run a script of its daemon's name.
    monkeypatch.setattr(psutil, "process_iter", lambda fields: ())
    # Contexts that other tests measured are in the session's cache, and in this process.
    cuda_context.context_gib.cache_clear()
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    yield
    cuda_context.context_gib.cache_clear()
