from types import SimpleNamespace

import pytest
import torch
from nvml_double import NO_DRIVER, put_driver
from training import CPU

from tune_speed.components.metrics.device_counters import gpu_utilisation
from tune_speed.training.flops import training_flop_per_sample


def test_linear_layer_of_4_by_3_does_its_forward_and_its_weights_gradient() -> None:
    """The first layer's input needs no gradient: 2 times 4 · 3 multiply-adds, as two each."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    per_sample = training_flop_per_sample(model, image_shape=(1, 2, 2))
    assert per_sample == 48


def test_cpu_has_no_gpu_utilisation() -> None:
    assert gpu_utilisation(CPU) is None


def test_utilisation_is_the_percentage_as_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    put_driver(monkeypatch, {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=85, memory=3)})
    assert gpu_utilisation(torch.device("cuda:0")) == 0.85


def test_it_is_asked_by_uuid_and_not_by_the_index_that_torch_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on ROCm, or where torch was imported before NVML's binding."""

    def missing(*_: object) -> int:
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    put_driver(monkeypatch, {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=7, memory=0)})
    monkeypatch.setattr(torch.cuda, "utilization", missing)
    assert gpu_utilisation(torch.device("cuda:0")) == 0.07
    put_driver(monkeypatch, {}, init=NO_DRIVER)
    assert gpu_utilisation(torch.device("cuda:0")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_utilisation_is_a_share_or_not_known() -> None:
    share = gpu_utilisation(torch.device("cuda"))
    assert share is None or 0 <= share <= 1
