import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.training.tiny import Tiny, TinyNetwork, make_workload
from torch import Tensor, nn

from tune_speed.components.models import MODELS
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import CLOCKED, Status, Timing, TrialRecord
from tune_speed.core.words import joined
from tune_speed.data.split import SplitConfig
from tune_speed.runtime.device import device_key
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training.distributed.local import LocalCrew, run_here
from tune_speed.training.distributed.supervisor import RanksDied, run_together
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import Trial, finish
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, CheckpointPlan, TrialSpec
from tune_speed.training.workload import Workload

pytestmark = pytest.mark.slow

NUM_TRAIN = 61
"""Of the steps of 16, an epoch's last has 13 samples: 7 and 6."""


class RankTiny(Tiny):
    on_rank: int = 1
    most_images_there: int | None = None
    crash_after_there: int | None = None
    die_after_there: int | None = None

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        if not dist.is_initialized() or dist.get_rank() != self.on_rank:
            return TinyNetwork(self, in_channels, num_classes)
        limits = {"most_images": self.most_images_there, "crash_after": self.crash_after_there}
        there = self.model_copy(update={k: v for k, v in limits.items() if v is not None})
        return DyingNetwork(there, in_channels, num_classes)


class DyingNetwork(TinyNetwork):
    def forward(self, images: Tensor) -> Tensor:
        assert isinstance(self.config, RankTiny)
        if self.config.die_after_there is not None and self.training:
            self.num_passes += 1
            if self.num_passes > self.config.die_after_there:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


if multiprocessing.current_process().name.startswith("rank "):  # It has this file from its keeper.
    MODELS["rank_tiny"] = RankTiny


@pytest.fixture(autouse=True)
def _rank_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "rank_tiny", RankTiny)


def make_spec(
    *, model: dict[str, Any] | None = None, workload: Workload | None = None, **recipe: Any
) -> TrialSpec:
    fields = {"optimizer": {"sgd": {"lr": 0.1}}, "epochs": 2.0, "batch_size": 8, "devices": 2}
    split = SplitConfig(train_samples=NUM_TRAIN, validation_samples=30)
    return TrialSpec(
        study="study",
        trial_id="t0000",
        params={},
        recipe=Recipe.model_validate({"model": {"rank_tiny": model or {}}, **fields, **recipe}),
        workload=workload or make_workload(split=split),
        workload_hash="w" * 16,
        space_hash="s" * 16,
        seed=0,
        allotment=Allotment(device="cpu"),
    )


def run(**fields: Any) -> TrialRecord:
    return finish(run_here(make_spec(**fields)), on_report=lambda record: None)


def test_two_devices_learn_what_one_learns_by_accumulation() -> None:
    alone = run(devices=1, accumulation_steps=2).runs[0]
    record = run()
    result = record.runs[0]
    assert (record.status, result.steps, result.samples) == (Status.MISSED, 8, 2 * NUM_TRAIN)
    assert str(record.device) == f"2 x {alone.device}"
    assert (result.batch_size, result.accumulation_steps) == (8, 1)
    for ours, theirs in zip(result.evaluations, alone.evaluations, strict=True):
        assert (ours.samples, ours.accuracy) == (theirs.samples, theirs.accuracy)
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert ours.train_loss == pytest.approx(theirs.train_loss, abs=1e-5)


def test_devices_wait_for_no_gradient_of_a_bias_that_is_frozen() -> None:
    whole, half = (
        run(speedups={"init": {"whitening": {"frozen": True, "bias_frac": share}}}).runs[0]
        for share in (1.0, 0.5)
    )
    assert half.steps == whole.steps == 8, half.traceback
    pairs = zip(half.evaluations, whole.evaluations, strict=True)
    assert [ours.loss == theirs.loss for ours, theirs in pairs] == [True, True, False]


@contextmanager
def neighbour(folder: Path) -> Iterator[list[float]]:
    """Trains beside the block on the same device; yields its pauses, one a step [s]."""
    pauses_s, is_over = list[float](), threading.Event()

    def train() -> None:
        key = device_key(torch.device("cpu"))
        with Turnstile.open(key, folder=folder) as turnstile, turnstile.training():
            while not is_over.is_set():
                pauses_s.append(turnstile.pass_by())
                time.sleep(0.01)

    thread = threading.Thread(target=train)
    thread.start()
    yield pauses_s
    is_over.set()
    thread.join()


def test_steps_on_two_devices_are_isolated_together_and_train_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_SPEED_TURNSTILE", str(tmp_path))
    fields: dict[str, Any] = {"model": {"dropout": 0.4}}
    alone = run(**fields).runs[0]
    shared = Allotment(device="cpu", max_cotenants=1)
    spec = make_spec(**fields).model_copy(update={"allotment": shared})
    with neighbour(tmp_path) as pauses_s:
        record = finish(run_here(spec), on_report=lambda record: None)
    result = record.runs[0]
    assert alone.timing in (Timing.EXCLUSIVE, Timing.DISTURBED) and result.timing in CLOCKED
    (step_time,) = result.step_times
    assert step_time.num_steps >= 2 and 0 < step_time.low_s <= step_time.step_s
    assert result.clocks.train_s == pytest.approx(2 * NUM_TRAIN / 16 * step_time.step_s)
    assert 0.2 < max(pauses_s) < 10
    assert [e.loss for e in result.evaluations] == [e.loss for e in alone.evaluations]

    known = {"step_times": result.step_times, "trial_id": "t0001"}
    again = finish(run_here(spec.model_copy(update=known)), on_report=lambda record: None).runs[0]
    assert again.timing in CLOCKED and again.clocks.measuring_s == 0


def test_error_on_any_device_is_the_trials_with_its_own_traceback() -> None:
    record = run(model={"crash_after_there": 8})
    assert record.status == Status.FAILED
    assert str(record.stop_reason) == "ZeroDivisionError: boom"
    assert "boom" in (record.runs[0].traceback or "")


def test_device_whose_process_dies_ends_the_trial() -> None:
    record = run(model={"die_after_there": 10}, epochs=50.0)
    assert record.status == Status.FAILED
    assert str(record.stop_reason) == "RanksDied: the process of rank 1 died with exit code -9"
    assert len(record.runs[0].evaluations) >= 1


def test_death_is_raised_where_the_trial_can_be_run_again() -> None:
    spec = make_spec(model={"die_after_there": 0, "on_rank": 0})
    trial = run_together(spec, launch=LocalCrew, refuse=(RanksDied,))
    with pytest.raises(RanksDied, match="rank 0 died"):
        next(trial)


def test_what_the_user_did_wrong_is_raised() -> None:
    workload = make_workload(target=0.01, split=SplitConfig(train_samples=61))
    with pytest.raises(ConfigError, match=r"workload\.target\.value:"):
        next(run_here(make_spec(workload=workload), refuse=(ConfigError,)))


def test_more_devices_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    spec = make_spec()
    on_gpu = spec.model_copy(update={"allotment": Allotment(device="cuda")})
    with pytest.raises(ConfigError, match=r"number of GPUs here, which is 1, but got 2"):
        next(run_here(on_gpu, refuse=(ConfigError,)))


def checkpointed(place: Path, **fields: Any) -> TrialSpec:
    place.parent.mkdir(exist_ok=True)
    plan = CheckpointPlan(place=str(place), every_s=0.0)
    return make_spec(**fields).model_copy(update={"checkpoint": plan})


def curve(record: TrialRecord) -> list[dict[str, Any]]:
    return [e.model_dump(exclude={"train_s"}) for e in record.runs[0].evaluations]


def stopped(trial: Trial, reason: str) -> TrialRecord:
    with pytest.raises(StopIteration) as end:
        trial.send(reason)
    record: TrialRecord = end.value.value
    return record


def test_devices_go_on_together_where_they_broke_off_or_begin_anew(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"model": {"dropout": 0.4}, "epochs": 4.0}
    place = tmp_path / "checkpoints" / "t0000.ckpt"
    trial = run_here(checkpointed(place, **fields))
    next(trial)
    standing = next(trial)
    assert len(multiprocessing.active_children()) == 2
    trial.close()
    assert not multiprocessing.active_children()
    assert [path.name for path in place.parent.iterdir()] == ["t0000.ckpt"]
    kept = place.read_bytes()
    record = finish(run_here(checkpointed(place, **fields)), on_report=lambda record: None)
    # Before it stands whether others took its core: these are processes of their own.
    assert joined(record.runs[0].note).endswith("resumed at step 8 of 16")
    assert record.started_at < standing.finished_at
    assert list(place.parent.iterdir()) == []

    place.write_bytes(kept[:-5])
    anew = finish(run_here(checkpointed(place, **fields)), on_report=lambda record: None)
    assert "begun anew" in joined(anew.runs[0].note) and "it is cut off" in joined(
        anew.runs[0].note
    )
    assert anew.runs[0].steps == 16
    assert curve(record) == curve(anew)


def test_memory_that_runs_out_on_one_device_halves_the_micro_batch_of_all_for_good(tmp_path):
    fields: dict[str, Any] = {"model": {"most_images_there": 4}, "epochs": 50.0}
    place = tmp_path / "checkpoints" / "t0000.ckpt"
    trial = run_here(checkpointed(place, **fields))
    assert next(trial).runs[0].evaluations[-1].step == 4
    kept = place.read_bytes()
    result = stopped(trial, "too slow").runs[0]
    assert not multiprocessing.active_children()
    assert (result.batch_size, result.accumulation_steps, result.steps) == (4, 2, 4)
    assert str(result.stop_reason) == "too slow (micro-batch 8 ran out of memory, 4 did not)"

    place.write_bytes(kept)
    interrupted = threading.Event()
    trial = run_here(checkpointed(place, **fields), interrupt=interrupted.is_set)
    result = next(trial).runs[0]
    assert result.batch_size == 4 and joined(result.note).endswith("resumed at step 4 of 200")
    interrupted.set()
    with pytest.raises(Interrupted):
        trial.send(None)
    assert not multiprocessing.active_children()
