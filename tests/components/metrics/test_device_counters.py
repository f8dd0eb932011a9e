"""Energy by counters: a made-up powercap tree and a made-up NVML, whose joules are known."""

import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from making import make_run
from nvml_double import NO_DRIVER, put_driver
from training import CPU

from tune_speed.components.metrics.device_counters import (
    PackageMeter,
    energy_meter,
    gpu_utilisation,
    idle_power_w,
)
from tune_speed.runtime.sharing import Sharing
from tune_speed.training.flops import training_flop_per_sample

RANGE_UJ = 262_143_328_850


def zone(folder: Path, name: str, *, kind: str, energy_uj: int) -> Path:
    """Writes a zone as the kernel shows it; returns the file of its counter."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "name").write_text(f"{kind}\n")
    (place / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    counter = place / "energy_uj"
    counter.write_text(f"{energy_uj}\n")
    return counter


def test_packages_are_summed_and_their_parts_and_the_board_are_not(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", kind="package-0", energy_uj=5_000_000)
    second = zone(tmp_path, "intel-rapl:1", kind="package-1", energy_uj=0)
    core = zone(tmp_path, "intel-rapl:0:0", kind="core", energy_uj=0)
    board = zone(tmp_path, "intel-rapl:2", kind="psys", energy_uj=0)
    meter = PackageMeter(tmp_path)
    assert meter.read() == 0.0
    for counter, energy_uj in ((first, 7_500_000), (second, 250_000), (core, 9**9), (board, 9**9)):
        counter.write_text(str(energy_uj))
    assert meter.read() == pytest.approx(2.5 + 0.25)


def test_counter_that_begins_again_goes_on(tmp_path: Path) -> None:
    counter = zone(tmp_path, "intel-rapl:0", kind="package-0", energy_uj=RANGE_UJ - 1_000_000)
    meter = PackageMeter(tmp_path)
    counter.write_text("2000000")
    assert meter.read() == pytest.approx(3.0)


def test_counter_that_may_have_begun_again_twice_says_nothing(tmp_path: Path) -> None:
    """At 500 W, 262 kJ are over after 524 s."""
    zone(tmp_path, "intel-rapl:0", kind="package-0", energy_uj=0)
    now_s = [0.0]
    meter = PackageMeter(tmp_path, now=lambda: now_s[0])
    now_s[0] = 520.0
    assert meter.read() == 0.0
    now_s[0] += 530.0
    assert meter.read() is None
    assert meter.read() == 0.0


def test_what_cannot_be_read_has_no_energy(tmp_path: Path) -> None:
    assert PackageMeter(tmp_path / "none").read() is None
    counter = zone(tmp_path, "intel-rapl:0", kind="package-0", energy_uj=0)
    meter = PackageMeter(tmp_path)
    counter.unlink()  # As for one who is not root.
    assert meter.read() is None


def test_gpu_counts_in_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter((1_500, 1_750))
    put_driver(monkeypatch, {"nvmlDeviceGetTotalEnergyConsumption": lambda: next(counted)})
    read = energy_meter(torch.device("cuda:0"))
    assert (read(), read()) == (1.5, 1.75)


def test_part_of_a_gpu_has_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    put_driver(monkeypatch, {"nvmlDeviceGetTotalEnergyConsumption": 1_500})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert energy_meter(torch.device("cuda:0"))() is None
    put_driver(monkeypatch, {}, uuid="MIG-1")
    assert energy_meter(torch.device("cuda:0"))() is None


def sharing_with(turn: object) -> Sharing:
    """Returns a place whose turnstile gives this turn."""

    @contextmanager
    def measuring(*, patience_s: float) -> Any:
        yield turn

    sharing = Sharing.alone()
    sharing.turnstile = SimpleNamespace(measuring=measuring)  # type: ignore[assignment]
    return sharing


def metered_w() -> float:
    """The counter of a device that takes 70 W."""
    return 70.0 * time.perf_counter()


@pytest.mark.parametrize(
    ("turn", "is_known"),
    [
        (SimpleNamespace(is_isolated=True), True),
        (SimpleNamespace(is_isolated=False), False),
        (None, False),
    ],
)
def test_baseline_is_measured_only_while_all_others_pause(turn: object, is_known: bool) -> None:
    found = idle_power_w(metered_w, sharing_with(turn))
    assert found == (pytest.approx(70.0, rel=0.25) if is_known else None)
    assert idle_power_w(lambda: None, sharing_with(turn)) is None


def test_energy_to_the_target_is_power_times_its_time() -> None:
    run = make_run(time_s=3.0)
    assert run.energy_j is None
    assert run.model_copy(update={"power_w": 200.0}).energy_j == 600.0
    missed = run.model_copy(update={"power_w": 200.0, "time_to_target_s": None})
    assert missed.energy_j is None
    assert not {"power_w", "idle_power_w"} & run.model_dump().keys()


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
