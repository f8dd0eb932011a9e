import gc
import json
import math
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.data.files import encode
from helpers.training.tiny import NUM_TRAIN, Tiny, make_spec, make_workload
from torch import nn

from tune_speed.components.models import MODELS
from tune_speed.core.errors import ConfigError, DataError
from tune_speed.core.records import RunResult, Status, StepTime, Timing, TrialRecord
from tune_speed.core.words import joined
from tune_speed.data.loaders import resident
from tune_speed.data.loaders.configs import Automatic, Resident, Streaming
from tune_speed.data.split import SplitConfig
from tune_speed.runtime import step_timer
from tune_speed.training import accounts, loop, objective
from tune_speed.training.objective import finish, run_trial
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment
from tune_speed.training.workload import Workload


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", Tiny)


def run(**fields: Any) -> TrialRecord:
    return finish(run_trial(make_spec(**fields)), on_report=lambda record: None)


def test_record_holds_all_that_a_reader_needs() -> None:
    record = run()
    result = record.runs[0]
    assert (record.status, result.steps, result.samples) == (Status.MISSED, 8, 2 * NUM_TRAIN)
    assert record.device == result.device and record.device.threads == 1
    assert 0 < (result.peak_memory_gib or 0) < (result.memory_limit_gib or 0)
    clocks = result.clocks
    assert min(clocks.setup_s, clocks.compile_s, clocks.train_s, clocks.eval_s) > 0
    spans_s = clocks.setup_s + clocks.compile_s + clocks.train_s + clocks.eval_s
    assert clocks.wall_s >= spans_s
    assert record.started_at < record.finished_at


def test_reports_come_after_each_evaluation_but_the_last() -> None:
    reports: list[TrialRecord] = []
    finish(run_trial(make_spec(epochs=3.0)), on_report=reports.append)
    assert [len(r.runs[0].evaluations) for r in reports] == [2, 3]
    assert all(r.status == Status.CAPPED and r.runs[0].memory_limit_gib for r in reports)


def test_reason_to_stop_ends_the_trial() -> None:
    trial = run_trial(make_spec(epochs=3.0))
    next(trial)
    with pytest.raises(StopIteration) as end:
        trial.send("too slow")
    assert end.value.value.status == Status.CAPPED
    assert str(end.value.value.stop_reason) == "too slow"


def test_only_a_certified_run_trains_on_what_it_may_certify_on() -> None:
    split = SplitConfig(train_samples=NUM_TRAIN, validation_samples=30)
    workload = make_workload(split=split, certify_on="train+validation")
    spec = make_spec(workload=workload, epochs=1.0)
    certified = spec.model_copy(update={"evaluated_on": "test"})
    runs = [finish(run_trial(each), on_report=lambda _: None).runs[0] for each in (spec, certified)]
    assert [run.samples for run in runs] == [NUM_TRAIN, NUM_TRAIN + 30]


def test_recipe_on_record_gives_the_same_run_again() -> None:
    record = run(model={"dropout": 0.2})
    again = make_spec().model_copy(update={"recipe": Recipe.model_validate(record.recipe)})
    repeated = finish(run_trial(again), on_report=lambda record: None)
    curves = [[(e.loss, e.train_loss) for e in r.runs[0].evaluations] for r in (record, repeated)]
    assert curves[0] == curves[1]


# --- On a shared device


@pytest.fixture(autouse=True)
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timer, "MOST_DELAYED", math.inf)


def run_shared(*, step_times: tuple[StepTime, ...] = (), **fields: Any) -> RunResult:
    spec = make_spec(**fields)
    shared = spec.allotment.model_copy(update={"max_cotenants": 1})
    spec = spec.model_copy(update={"allotment": shared, "step_times": step_times})
    return finish(run_trial(spec), on_report=lambda record: None).runs[0]


def test_training_clock_on_a_shared_device_is_steps_times_isolated_step_time() -> None:
    result = run_shared(epochs=3.0)
    (step_time,) = result.step_times
    assert result.timing == Timing.ISOLATED
    assert result.clocks.train_s == pytest.approx(3 * NUM_TRAIN / 16 * step_time.step_s)
    assert result.flop_per_s == pytest.approx(result.flop / result.clocks.train_s)
    assert [e.train_s for e in result.evaluations] == pytest.approx(
        [e.samples / 16 * step_time.step_s for e in result.evaluations]
    )
    assert step_time.low_s <= step_time.step_s <= step_time.high_s
    assert result.clocks.measuring_s > 0


def test_steps_of_other_shapes_are_timed_apart_and_a_run_costs_their_sum() -> None:
    growing = {"batch_stages": {"factors": [1, 2], "at": [0.0, 0.5]}}
    resizing = {"progressive_resizing": {"delay_frac": 0.6, "finetune_frac": 0.4}}
    result = run_shared(epochs=4.0, speedups={"batch_growth": growing, "resolution": resizing})
    small, large = result.step_times
    assert small.key != large.key and result.timing == Timing.ISOLATED
    # Two epochs of small images in steps of 16, then two of whole ones in steps of 32; the first
    # stage ends where its steps do, which need not be where an epoch does.
    first = 2 * math.ceil(NUM_TRAIN / 16)
    seen = sum(min(16, NUM_TRAIN - i % math.ceil(NUM_TRAIN / 16) * 16) for i in range(first))
    expected_s = seen / 16 * small.step_s + (result.samples - seen) / 32 * large.step_s
    assert result.clocks.train_s == pytest.approx(expected_s)
    mean_s = (first * small.step_s + (result.steps - first) * large.step_s) / result.steps
    assert result.step_time_ms == pytest.approx(1000 * mean_s)


def test_what_sets_the_first_weights_is_on_the_clock_and_known_apart() -> None:
    result = run_shared(speedups={"init": {"pretrain_subset": {"part": 0.5}}})
    (step_time,) = result.step_times
    assert result.init_s > 0
    steps_s = result.samples / 16 * step_time.step_s
    assert result.clocks.train_s == pytest.approx(result.init_s + steps_s)
    assert result.evaluations[0].train_s == 0.0
    alone = run(speedups={"init": {"pretrain_subset": {"part": 0.5}}}).runs[0]
    assert 0 < alone.init_s < alone.clocks.train_s


def test_time_before_the_first_step_is_isolated_like_the_steps_after_it(monkeypatch):
    def take(steps: Iterator[object], num_steps: int, **_: object) -> float:
        deque(islice(steps, num_steps), 0)
        return -100.0

    monkeypatch.setattr(accounts, "take_all", take)
    pretraining = {"init": {"pretrain_subset": {"part": 0.5}}}
    result = run_shared(speedups=pretraining)
    (step_time,) = result.step_times
    assert 100 < result.init_s < 101
    steps_s = result.samples / 16 * step_time.step_s
    assert result.clocks.train_s == pytest.approx(result.init_s + steps_s)
    assert result.fed_ratio is not None and 0 < result.fed_ratio <= 1
    assert run(speedups=pretraining).runs[0].init_s < 100, "alone, the clock itself counts"


def test_what_passed_stands_beside_the_isolated_clock() -> None:
    result = run_shared()
    assert result.shared_train_s is not None and result.shared_train_s > 0
    assert result.slowdown == pytest.approx(result.shared_train_s / result.clocks.train_s)


def test_alone_on_the_device_the_clock_itself_counts_and_nothing_is_measured() -> None:
    result = run().runs[0]
    assert (result.step_times, result.slowdown) == ((), None)
    assert result.timing in (Timing.EXCLUSIVE, Timing.DISTURBED), "other tests are at work too"
    assert result.clocks.train_s == result.shared_train_s
    assert result.clocks.measuring_s == 0


def test_known_step_time_is_not_measured_again() -> None:
    (measured,) = run_shared().step_times
    known = measured.model_copy(update={"step_s": 0.5, "measured_in": "earlier/t0003"})
    result = run_shared(step_times=(known,))
    assert result.step_times == (known,)
    assert result.clocks.train_s == pytest.approx(2 * NUM_TRAIN / 16 * 0.5)
    assert result.clocks.measuring_s == 0


def test_step_time_of_another_kind_of_step_is_of_no_use() -> None:
    (measured,) = run_shared().step_times
    (other,) = run_shared(step_times=(measured,), batch_size=8).step_times
    assert other.key != measured.key
    assert other.measured_in == "study/t0000"


def test_measuring_leaves_no_trace_in_the_run() -> None:
    model = {"norm": "batch", "dropout": 0.3}
    alone, shared = run(model=model).runs[0], run_shared(model=model)
    curves = [[(e.loss, e.train_loss) for e in r.evaluations] for r in (alone, shared)]
    assert curves[0] == curves[1]


def test_streamed_batches_are_the_same_after_measuring() -> None:
    loader = {"dataloader": {"workers": 1}}
    alone, shared = run(loader=loader).runs[0], run_shared(loader=loader)
    curves = [[e.loss for e in r.evaluations] for r in (alone, shared)]
    assert curves[0] == curves[1]


def limited(max_train_s: float, mode: str = "fixed_length") -> Workload:
    split = SplitConfig(train_samples=NUM_TRAIN, validation_samples=30)
    return make_workload(split=split, max_train_s=max_train_s, mode=mode)


def timed(step_s: float, low_s: float) -> StepTime:
    (measured,) = run_shared().step_times
    return measured.model_copy(update={"step_s": step_s, "low_s": low_s, "high_s": 2 * step_s})


def test_time_limit_is_on_the_isolated_clock() -> None:
    slow = timed(100.0, low_s=90.0)
    result = run_shared(workload=limited(250.0, "anytime"), step_times=(slow,))
    assert (result.status, result.steps) == (Status.CAPPED, 3)


def test_run_that_certainly_takes_longer_than_its_limit_ends_before_it_trains() -> None:
    result = run_shared(workload=limited(650.0), step_times=(timed(100.0, low_s=90.0),))
    assert (result.status, result.steps, result.clocks.train_s) == (Status.CAPPED, 0, 0.0)
    # Two epochs of 60 images in steps of 16.
    assert str(result.stop_reason) == "would take 750 s of max_train_s = 650 s"
    assert result.step_time_ms == pytest.approx(100_000)
    assert [e.step for e in result.evaluations] == [0]


def test_run_that_may_end_within_its_limit_trains() -> None:
    result = run_shared(workload=limited(700.0), step_times=(timed(100.0, low_s=90.0),))
    assert (result.status, result.steps) == (Status.CAPPED, 8)
    assert str(result.stop_reason).startswith("max_train_s = 700 s passed with accuracy")


def test_run_whose_steps_were_not_timed_trains() -> None:
    assert run(workload=limited(1e-6)).runs[0].steps == 1


def test_without_locks_a_shared_clock_is_called_so_and_the_run_goes_on(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TUNE_SPEED_TURNSTILE", str(blocked))
    result = run_shared()
    assert (result.status, result.timing) == (Status.MISSED, Timing.SHARED)
    assert "co-tenants cannot be seen" in joined(result.note)


# --- Errors


def test_crash_is_recorded_with_its_traceback_and_the_next_trial_runs() -> None:
    record = run(model={"crash_after": 0})
    assert (record.status, str(record.stop_reason)) == (Status.FAILED, "ZeroDivisionError: boom")
    assert "in forward" in (record.runs[0].traceback or "")
    assert record.device.kind == "cpu"
    json.dumps(record.model_dump(mode="json"), allow_nan=False)
    assert run().status == Status.MISSED


def test_crash_in_mid_run_keeps_the_evaluations_before_it() -> None:
    # One pass each for warm-up (of two sizes) and evaluation, then four a training epoch and one
    # an evaluation: the second epoch fails at its second step.
    record = run(model={"crash_after": 2 + 1 + 4 + 1 + 1})
    result = record.runs[0]
    assert (record.status, len(result.evaluations)) == (Status.FAILED, 2)
    assert "in forward" in (result.traceback or "")
    assert result.clocks.train_s > 0 and result.memory_limit_gib


@pytest.mark.parametrize(("refuse", "raises"), [((), False), ((ConfigError,), True)])
def test_refused_errors_are_raised_and_others_recorded(refuse, raises):
    spec = make_spec(workload=make_workload(target=0.001))
    trial = run_trial(spec, refuse=refuse)
    if raises:
        with pytest.raises(ConfigError, match=r"workload\.target\.value"):
            next(trial)
    else:
        record = finish(trial, on_report=lambda record: None)
        assert record.status == Status.FAILED
        assert "workload.target.value" in str(record.stop_reason)


def test_missing_data_is_a_failure_that_names_the_folder() -> None:
    workload = Workload.model_validate(
        {"dataset": {"name": "cifar10", "root": "/nowhere"}, "target": {"value": 0.9}}
    )
    record = run(workload=workload)
    assert (record.status, "/nowhere" in str(record.stop_reason)) == (Status.FAILED, True)
    with pytest.raises(DataError):
        next(run_trial(make_spec(workload=workload), refuse=(DataError,)))


def test_missing_device_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    spec = make_spec().model_copy(update={"allotment": Allotment(device="cuda")})
    record = finish(run_trial(spec), on_report=lambda record: None)
    assert (record.status, "cuda" in str(record.stop_reason)) == (Status.FAILED, True)


def test_interruption_is_no_outcome() -> None:
    with pytest.raises(loop.Interrupted):
        next(run_trial(make_spec(), interrupt=lambda: True))


def test_data_is_read_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run()

    def prepare(*args: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(objective, "prepare", prepare)
    assert run().status == Status.MISSED


# --- Out of memory


@pytest.mark.parametrize(
    ("batch_size", "accumulation_steps", "most_images", "ran"),
    [(16, 1, 16, (16, 1)), (16, 1, 5, (4, 4)), (16, 2, 1, (1, 32)), (15, 2, 9, (6, 5))],
)
def test_micro_batch_that_does_not_fit_is_halved(batch_size, accumulation_steps, most_images, ran):
    record = run(
        model={"most_images": most_images},
        batch_size=batch_size,
        accumulation_steps=accumulation_steps,
    )
    result = record.runs[0]
    assert record.status == Status.MISSED
    assert (result.batch_size, result.accumulation_steps) == ran
    assert (record.recipe["batch_size"], record.recipe["accumulation_steps"]) == ran
    note = f"micro-batch {batch_size} ran out of memory, {ran[0]} did not"
    assert (note in str(record.stop_reason)) == (ran[0] != batch_size)


def test_halved_micro_batch_trains_like_the_large_one() -> None:
    whole, halves = (run(model={"most_images": most}) for most in (16, 5))
    finals = [record.runs[0].evaluations[-1] for record in (whole, halves)]
    assert finals[1].loss == pytest.approx(finals[0].loss, rel=1e-4)
    assert finals[1].train_loss == pytest.approx(finals[0].train_loss, rel=1e-4)


def test_micro_batch_of_one_that_does_not_fit_is_the_outcome_oom() -> None:
    record = run(model={"most_images": 0})
    result = record.runs[0]
    assert record.status == Status.OOM
    assert str(record.stop_reason) == "out of memory, down to a micro-batch of 1"
    assert (result.batch_size, result.accumulation_steps) == (1, 16)
    assert "images are too many" in (result.traceback or "")
    assert result.memory_limit_gib and result.peak_memory_gib
    assert record.device.kind == "cpu"


@pytest.mark.slow
def test_memory_of_a_failed_attempt_is_free_before_the_next(monkeypatch):
    alive: list[int] = []
    built: list[weakref.ref[nn.Module]] = []
    original = loop.build_model

    def build(*args: Any, **kwargs: Any) -> nn.Module:
        alive.append(sum(ref() is not None for ref in built))
        model = original(*args, **kwargs)
        model.cycle = [model]  # so that only a collection can free it
        built.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loop, "build_model", build)
    gc.disable()
    try:
        run(model={"most_images": 2})
    finally:
        gc.enable()
    assert alive == [0, 0, 0, 0]


class Pooled(Tiny):
    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        network = super().network(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size
        )
        network.dropout = nn.BatchNorm1d(4)
        return network


@pytest.mark.parametrize(
    ("batch_size", "most_images", "status", "ran"),
    [(2, None, "missed", 2), (59, None, "failed", None), (2, 1, "oom", 1), (59, 1, "oom", 1)],
)
def test_too_small_for_batch_norm_is_refused_but_oom_where_memory_ran_out_before(
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    most_images: int | None,
    status: str,
    ran: int | None,
) -> None:
    monkeypatch.setitem(MODELS, "tiny", Pooled)
    record = run(model={"most_images": most_images}, batch_size=batch_size)
    assert (record.status.value, record.runs[0].batch_size) == (status, ran)
    if status == "failed":
        assert "recipe.batch_size: must leave no micro-batch" in str(record.stop_reason)


@pytest.mark.parametrize(("most_images", "status"), [(20, "missed"), (0, "oom")])
def test_auto_accumulation_trains_with_a_micro_batch_that_fits(most_images, status):
    record = run(
        model={"most_images": most_images},
        batch_size=None,
        accumulation_steps="auto",
        effective_batch_size=48,
    )
    batch_size = record.runs[0].batch_size
    assert record.status.value == status
    assert batch_size in ({1, 3, 6, 12} if most_images else {1})
    assert record.runs[0].accumulation_steps == 48 // (batch_size or 0)


REAL_OUT_OF_MEMORY = """
import sys
sys.path.insert(0, {tests!r})
from helpers.training.tiny import CPU, Tiny, make_spec
from tune_speed.components.models import MODELS
from tune_speed.runtime import device
from tune_speed.training.objective import finish, load_splits, run_trial

class Wide(Tiny):
    def network(self, *, in_channels, num_classes, image_size):
        from torch import nn
        # 20 MB of activations for each image, by layers that torch itself allocates for.
        return nn.Sequential(
            nn.Flatten(), nn.Unflatten(1, (1, 64)), nn.Upsample(scale_factor=40_000),
            nn.Sigmoid(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(4, num_classes)
        )

MODELS["tiny"] = Wide
spec = make_spec(epochs=0.1)
load_splits(spec.workload)
import torch._dynamo  # a part of torch that comes with the first optimizer
device._node_memory_bytes = lambda: 300 << 20
device.limit_memory(CPU, gpu_fraction=0, cpu_fraction=1.0)
print(finish(run_trial(spec), on_report=lambda record: None).model_dump_json())
"""


@pytest.mark.slow
def test_real_out_of_memory_halves_the_micro_batch() -> None:
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", REAL_OUT_OF_MEMORY.format(tests=tests)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = TrialRecord.model_validate_json(done.stdout)
    result = record.runs[0]
    assert record.status == Status.MISSED, result.traceback
    assert result.batch_size in {1, 2, 4, 8}
    assert (result.batch_size or 0) * (result.accumulation_steps or 0) == 16
    assert "micro-batch 16 ran out of memory" in str(record.stop_reason)


@pytest.mark.slow
def test_every_way_to_feed_photographs_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of JPEG files, stored as they are, decoded before the training or in its epochs."""
    noise = np.random.default_rng(0)
    for number in range(40):
        pixels = noise.integers(0, 256, (16 + number % 5, 18, 3), dtype=np.uint8)
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels, kind="jpeg"))
    photos = {
        "name": "image_folder",
        "root": str(tmp_path / "photos"),
        "store": "jpeg",
        "store_size": 16,
    }
    workload = Workload.model_validate({"dataset": photos, "target": {"value": 1.0}})
    fields = {"workload": workload, "image_size": 12, "epochs": 2.0, "batch_size": 8}
    ways = [Resident(), Automatic(), Streaming(), Streaming(workers=1)]
    records = [run(**fields, loader=way) for way in ways]
    monkeypatch.setitem(resident.SET_SHARE, "cpu", 0.0)
    records.append(run(**fields, loader=Automatic()))
    assert not any(r.runs[0].traceback for r in records), records[0].runs[0].traceback
    curves = [[e.loss for e in record.runs[0].evaluations] for record in records]
    assert len(curves[0]) == 3 and curves == [curves[0]] * len(records)
    notes = [
        [n.figures["way"] for n in record.runs[0].note if "way" in n.figures] for record in records
    ]
    assert notes == [[], ["resident"], [], [], ["encoded"]]
