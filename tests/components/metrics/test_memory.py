import pytest
import torch
from making import make_run

from tune_speed.components.metrics.of_run import peak_memory_frac
from tune_speed.components.metrics.work import device_memory_gib


def test_share_is_peak_over_limit() -> None:
    run = make_run().model_copy(update={"peak_memory_gib": 3.0, "memory_limit_gib": 12.0})
    assert peak_memory_frac(run) == 0.25


def test_share_is_not_known_without_a_limit_or_a_peak() -> None:
    assert peak_memory_frac(make_run().model_copy(update={"memory_limit_gib": None})) is None
    assert peak_memory_frac(make_run().model_copy(update={"peak_memory_gib": None})) is None


def test_memory_on_the_device_is_what_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * gib, 80 * gib))
    assert device_memory_gib(torch.device("cuda", 0)) == 20.0
    assert device_memory_gib(torch.device("cpu")) is None
