import re
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.making import make_evaluation, make_run
from helpers.runtime.gpus import NO_DRIVER, put_driver
from helpers.training.tiny import CPU

from tune_speed.components.metrics import METRICS
from tune_speed.components.metrics.base import (
    OF_RUN,
    Point,
    epoch_s,
    epochs_of_run,
    epochs_to_convergence,
    peak_memory_frac,
    speed_up,
)
from tune_speed.components.metrics.device_counters import (
    PackageMeter,
    energy_meter,
    gpu_utilisation,
    idle_power_w,
)
from tune_speed.core.records import Clocks, Evaluation, RunResult, Status
from tune_speed.runtime.sharing import Sharing
from tune_speed.training.flops import training_flop_per_sample


def curve(*accuracies: float) -> list[Point]:
    return [Point(float(epoch), accuracy) for epoch, accuracy in enumerate(accuracies)]


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.1, 0.5, 0.7, 0.8, 0.801, 0.802, 0.80), 3.0),
        ((0.1, 0.5, 0.5, 0.5, 0.9, 0.9, 0.9, 0.9), 4.0),  # a plateau of 3 epochs, then a rise
        ((0.1, 0.5, 0.7, 0.8, 0.801), None),  # ended before 3 epochs more
        ((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), None),  # still rising
        ((0.1, 0.1, 0.1, 0.1), 0.0),  # never learned
        ((0.5, 0.4, 0.3, 0.2), 0.0),  # a fall is no rise
        ((), None),
    ],
)
def test_convergence_is_the_first_epoch_without_a_rise_within_three_more(accuracies, expected):
    found = epochs_to_convergence(curve(*accuracies), least_rise=0.01, further_epochs=3.0)
    assert found == expected


def test_slow_rise_counts_once_it_adds_up() -> None:
    slow = curve(*(0.5 + 0.004 * epoch for epoch in range(8)))
    assert epochs_to_convergence(slow, least_rise=0.01, further_epochs=3.0) is None
    assert epochs_to_convergence(slow, least_rise=0.01, further_epochs=2.0) == 0.0


def test_epochs_without_an_evaluation_say_nothing() -> None:
    sparse = [Point(0.0, 0.5), Point(10.0, 0.5), Point(11.0, 0.9), Point(20.0, 0.9)]
    assert epochs_to_convergence(sparse, least_rise=0.01, further_epochs=5.0) is None


def test_run_converges_by_its_evaluations() -> None:
    steps = range(0, 80, 10)  # ten steps are an epoch
    points = [make_evaluation(step=s, accuracy=0.4 if s == 0 else 0.8) for s in steps]
    run = make_run().model_copy(update={"evaluations": tuple(points)})
    assert epochs_of_run(run) == 1.0


def test_share_is_peak_over_limit() -> None:
    run = make_run().model_copy(update={"peak_memory_gib": 3.0, "memory_limit_gib": 12.0})
    assert peak_memory_frac(run) == 0.25


def test_share_is_not_known_without_a_limit_or_a_peak() -> None:
    assert peak_memory_frac(make_run().model_copy(update={"memory_limit_gib": None})) is None
    assert peak_memory_frac(make_run().model_copy(update={"peak_memory_gib": None})) is None


def test_share_of_the_device_is_of_the_whole_gpu() -> None:
    memory = {"device_memory_gib": 60.0, "gpu_memory_gib": 80.0, "memory_limit_gib": 20.0}
    assert OF_RUN["device_memory_frac"](make_run().model_copy(update=memory)) == 0.75
    assert OF_RUN["device_memory_frac"](make_run()) is None


@pytest.mark.parametrize("name", METRICS)
def test_metric_says_what_it_is_in_which_unit_and_whence(name: str) -> None:
    metric = METRICS[name]
    assert len(metric.about) > 20 and metric.about.endswith(".")
    assert metric.unit and metric.source


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS[name].of_run])
def test_metric_of_a_run_is_a_number_or_none_whatever_is_missing(name: str) -> None:
    of_run = METRICS[name].of_run
    assert of_run is not None
    bare = RunResult(status=Status.FAILED, seed=0, stop_reason="failed")
    assert of_run(bare) is None
    full = make_run().model_copy(update={"evaluations": (make_evaluation(),)})
    assert of_run(full) is None or isinstance(of_run(full), float)


@pytest.mark.parametrize("name", [name for name in METRICS if not METRICS[name].of_run])
def test_metric_that_is_not_of_a_run_says_where_to_look(name: str) -> None:
    assert re.search("`.+`", METRICS[name].about)


def run_with(*evaluations: Evaluation) -> RunResult:
    return make_run().model_copy(update={"evaluations": evaluations})


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("accuracy", "accuracy"),
        ("macro_f1", "macro_f1"),
        ("micro_f1", "micro_f1"),
        ("loss", "loss"),
        ("train_loss", "train_loss"),
    ],
)
def test_score_is_that_of_the_last_evaluation(name: str, field: str) -> None:
    first, last = (make_evaluation(accuracy=accuracy) for accuracy in (0.2, 0.7))
    last = last.model_copy(update={"micro_f1": 0.7, "train_loss": 0.3})
    of_run = METRICS[name].of_run
    assert of_run is not None
    assert of_run(run_with(first, last)) == getattr(last, field)
    assert of_run(run_with()) is None


def test_record_from_before_micro_f1_has_none() -> None:
    stored = make_evaluation().model_dump(exclude={"micro_f1"})
    assert Evaluation.model_validate(stored).micro_f1 is None


def test_mixed_precision_of_the_first_source_is_as_fast_as_its_table_says() -> None:
    """S0, Table I, ResNet50 on CIFAR-10: 0.86 h against 0.46 h."""
    assert speed_up(0.86, 0.46) == pytest.approx(1.87, abs=0.005)


def run_of(epochs: float) -> RunResult:
    """Returns a run of 12 s of training out of 20 s."""
    evaluation = make_evaluation().model_copy(update={"epoch": epochs})
    clocks = Clocks(train_s=12.0, eval_s=3.0, wall_s=20.0)
    return make_run().model_copy(update={"evaluations": (evaluation,), "clocks": clocks})


def test_epoch_is_training_time_over_passes_which_need_not_be_whole() -> None:
    assert epoch_s(run_of(2.5)) == pytest.approx(4.8)


def test_run_without_a_step_has_no_epoch_time() -> None:
    assert epoch_s(run_of(0.0)) is None
    assert epoch_s(make_run().model_copy(update={"evaluations": ()})) is None


def test_execution_is_all_of_the_run_and_training_a_part_of_it() -> None:
    assert OF_RUN["execution_s"](run_of(1.0)) == 20.0
    assert OF_RUN["train_s"](run_of(1.0)) == 12.0


def test_miss_has_no_time_to_target() -> None:
    time_to_target_s = METRICS["time_to_target_s"].of_run
    assert time_to_target_s is not None
    assert time_to_target_s(make_run(time_s=3.0)) == 3.0
    assert time_to_target_s(make_run(Status.MISSED)) is None


def test_amortised_time_leaves_out_what_the_first_weights_took() -> None:
    pretrained = make_run(time_s=3.0).model_copy(update={"init_s": 1.25})
    assert OF_RUN["amortised_time_to_target_s"](pretrained) == 1.75
    assert OF_RUN["amortised_time_to_target_s"](make_run(time_s=3.0)) is None
    assert (
        OF_RUN["amortised_time_to_target_s"](
            make_run(Status.MISSED).model_copy(update={"init_s": 1.0})
        )
        is None
    )


RANGE_UJ = 262_143_328_850


def zone(folder: Path, name: str, *, kind: str, energy_uj: int) -> Path:
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
    @contextmanager
    def measuring(*, patience_s: float) -> Any:
        yield turn

    sharing = Sharing.alone()
    sharing.turnstile = SimpleNamespace(measuring=measuring)  # type: ignore[assignment]
    return sharing


def metered_w() -> float:
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
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    per_sample = training_flop_per_sample(model, image_shape=(1, 2, 2))
    assert per_sample == 48


def test_cpu_has_no_gpu_utilisation() -> None:
    assert gpu_utilisation(CPU) is None


def test_utilisation_is_the_percentage_as_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    put_driver(monkeypatch, {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=85, memory=3)})
    assert gpu_utilisation(torch.device("cuda:0")) == 0.85


def test_it_is_asked_by_uuid_and_not_by_the_index_that_torch_counts(monkeypatch):
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
