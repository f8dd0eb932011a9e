import sys
from types import ModuleType

import pytest
import torch
from training import CPU

from tune_speed.components.metrics.work import gpu_utilisation
from tune_speed.training.flops import training_flop_per_sample


def test_linear_layer_of_4_by_3_does_its_forward_and_its_weights_gradient() -> None:
    """The first layer's input needs no gradient: 2 times 4 · 3 multiply-adds, as two each."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    per_sample = training_flop_per_sample(model, image_shape=(1, 2, 2))
    assert per_sample == 48


def test_cpu_has_no_gpu_utilisation() -> None:
    assert gpu_utilisation(CPU) is None


class NotSupported(Exception):
    """As of a part of a GPU."""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for nvidia-ml-py, which may not be there."""
    module = ModuleType("pynvml")
    module.NVMLError = NotSupported
    monkeypatch.setitem(sys.modules, "pynvml", module)


@pytest.mark.usefixtures("library")
def test_utilisation_is_the_percentage_as_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 85)
    assert gpu_utilisation(torch.device("cuda")) == 0.85


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("error", [NotSupported("MIG"), RuntimeError("Can't load the driver")])
def test_gpu_that_does_not_tell_has_none(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(device: torch.device) -> int:
        raise error

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    assert gpu_utilisation(torch.device("cuda")) is None


def test_without_the_library_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_utilisation(torch.device("cuda")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_utilisation_is_a_share_or_not_known() -> None:
    share = gpu_utilisation(torch.device("cuda"))
    assert share is None or 0 <= share <= 1
