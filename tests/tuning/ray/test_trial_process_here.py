"""What a process of trials answers, asked in this process; `test_trial_process` has whole ones.

What would end a process is noted instead; the trials are scripts that wait for events.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_run
from helpers.training.tiny import config_of

from tune_speed.core.records import Status, TrialRecord
from tune_speed.runtime import process
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.loop import Interrupted
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, CheckpointPlan, TrialSpec, make_record
from tune_speed.training.workload import Workload
from tune_speed.tuning.driver.trial_files import read_trial_file
from tune_speed.tuning.ray import trial_process
from tune_speed.tuning.ray.liveness import received
from tune_speed.tuning.ray.trial_process import TrialProcess

Interrupt = Callable[[], bool]
SOON_S = 60.0
QUIET = {"heartbeat_s": SOON_S, "report_every_s": 0.0}
"""Each answer is one of the trial's."""
WORKLOAD = {"dataset": {"name": "digits"}, "target": {"value": 1.0}}


def make_spec(trial_id: str, **changes: Any) -> TrialSpec:
    recipe = {
        "model": "resnet20",
        "optimizer": {"sgd": {"lr": 0.05}},
        "epochs": 1,
        "batch_size": 10,
    }
    spec = TrialSpec(
        study="study",
        trial_id=trial_id,
        params={},
        recipe=Recipe.model_validate(recipe),
        workload=Workload.model_validate(WORKLOAD),
        workload_hash="w" * 16,
        space_hash="s" * 16,
        seed=0,
        allotment=Allotment(device="cpu", cpu_threads=1),
    )
    return spec.model_copy(update=changes)


def standing(spec: TrialSpec) -> TrialRecord:
    """Returns the record that a script tells: always the same, its moments too."""
    record = make_record(spec, spec.recipe, make_run(Status.CAPPED), started_at="")
    return record.model_copy(update={"finished_at": "2026-01-01T00:00:00+00:00"})


def ends(spec: TrialSpec, interrupt: Interrupt) -> Any:
    yield standing(spec)
    return standing(spec)


def goes_on(spec: TrialSpec, interrupt: Interrupt) -> Any:
    yield standing(spec)
    while not interrupt():
        threading.Event().wait(0.002)
    raise Interrupted


def exits(spec: TrialSpec, interrupt: Interrupt) -> Any:
    yield standing(spec)
    raise SystemExit(3)


def exits_at_once(spec: TrialSpec, interrupt: Interrupt) -> Any:
    raise SystemExit(4)
    yield


def breaks(spec: TrialSpec, interrupt: Interrupt) -> Any:
    raise ZeroDivisionError("boom")
    yield


RELEASED = threading.Event()


def hangs(spec: TrialSpec, interrupt: Interrupt) -> Any:
    yield standing(spec)
    RELEASED.wait(SOON_S)
    return standing(spec)


class Scripted(TrialProcess):
    def _open(self, spec: TrialSpec, config: dict[str, Any]) -> Any:
        return globals()[spec.trial_id](spec, self._interrupt)


Begin = Callable[..., Scripted]


class Left(Exception):
    """The process would have ended."""


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scripted]]:
    def leave() -> None:
        raise Left

    for name in ("set_up_worker", "leave"):
        monkeypatch.setattr(trial_process, name, leave if name == "leave" else lambda: None)
    monkeypatch.setattr(trial_process, "END_S", 0.05)
    monkeypatch.setattr(trial_process, "LEAVE_S", 0.0)
    monkeypatch.setattr(process, "settle", lambda: None)
    (tmp_path / "trials").mkdir()
    RELEASED.clear()

    def begin(trial_id: str, **config: Any) -> Scripted:
        asked = Scripted.__new__(Scripted)  # Without what Ray's own base makes of a home folder.
        asked._iteration = 0
        asked.setup(config_of(make_spec(trial_id), tmp_path, **{**QUIET, **config}))
        return asked

    yield begin
    RELEASED.set()


def until(asked: TrialProcess, key: str) -> dict[str, Any]:
    for _ in range(10):
        if key in (report := asked.train()):
            return report
    raise AssertionError(f"no {key}")


def test_trial_is_reported_and_leaves_its_record(begin: Begin, tmp_path: Path) -> None:
    asked = begin("ends")
    report = until(asked, "end")
    assert (report["end"], report["done"]) == ("finished", True)
    assert report["training_iteration"] == asked._iteration
    record = received(report)
    assert record == standing(make_spec("ends")) == read_trial_file(tmp_path, "ends")
    # The next one is taken by the same process.
    assert asked.reset_config(config_of(make_spec("exits"), tmp_path, **QUIET))
    assert str(received(until(asked, "end")).stop_reason) == "SystemExit: 3"


def test_without_news_a_report_is_a_sign_of_life(begin: Begin) -> None:
    asked = begin("goes_on", heartbeat_s=0.01)
    until(asked, "record")
    number = asked._iteration
    assert asked.train() == {"done": False, "training_iteration": number + 1}
    asked.cleanup()


def test_stopped_trial_says_so_once_it_has_ended_and_leaves_neither_record_nor_checkpoint(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_process, "END_S", SOON_S)
    asked = begin("goes_on")
    until(asked, "record")
    place = tmp_path / "goes_on.ckpt"
    place.write_bytes(b"newer than the decision")
    saved = {"checkpoint": CheckpointPlan(place=str(place))}
    asked._trial.spec = asked._trial.spec.model_copy(update=saved)
    asked.stop_trial()
    report = asked.train()
    assert (report["end"], report["done"]) == ("stopped", True) and "record" not in report
    assert not place.exists() and read_trial_file(tmp_path, "goes_on") is None


def test_stopped_trial_that_does_not_end_ends_its_process(begin: Begin) -> None:
    asked = begin("hangs")
    until(asked, "record")
    asked.stop_trial()
    with pytest.raises(Left):
        asked.train()


def test_trial_whose_time_is_up_is_interrupted(begin: Begin) -> None:
    asked = begin("goes_on", stop_after_s=0.05)
    report = until(asked, "end")
    assert (report["end"], report["done"]) == ("interrupted", True)


@pytest.mark.parametrize(
    ("script", "reason", "evaluations"),
    [("exits", "SystemExit: 3", 1), ("exits_at_once", "SystemExit: 4", 0)],
)
def test_trial_that_would_end_its_process_has_failed_with_what_it_had(
    begin: Begin, tmp_path: Path, script: str, reason: str, evaluations: int
) -> None:
    record = received(until(begin(script), "end"))
    assert (record.status, str(record.stop_reason)) == (Status.FAILED, reason)
    (run,) = record.runs
    assert len(run.evaluations) == evaluations and f"in {script}" in (run.traceback or "")
    assert read_trial_file(tmp_path, script) == record


def test_error_of_a_trial_is_raised_to_who_asks(begin: Begin) -> None:
    with pytest.raises(ZeroDivisionError, match="boom"):
        until(begin("breaks"), "end")


def test_hung_trial_fails_and_a_question_ends_the_process(begin: Begin, tmp_path: Path) -> None:
    asked = begin("hangs")
    until(asked, "record")
    reports: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: reports.append(asked.train()))
    asking.start()
    while not asked._thread._changed._waiters:  # type: ignore[attr-defined]
        threading.Event().wait(0.001)
    with pytest.raises(Left):  # After a while for the driver to hear of it.
        asked._hung("Thread training: here\n", 12.0)
    asking.join()
    (report,) = reports
    assert (report["end"], report["done"]) == ("hung", False)
    record = received(report)
    assert (record.status, str(record.stop_reason)) == (Status.FAILED, "hung: no step for 12 s")
    assert (record.runs[0].traceback or "").startswith("Thread training: here")
    assert read_trial_file(tmp_path, "hangs") == record
    with pytest.raises(Left):
        asked.train()


def test_trial_that_has_just_ended_does_not_hang(begin: Begin) -> None:
    asked = begin("ends")
    until(asked, "end")
    asked._hung("", 12.0)
    assert not asked._trial.is_hung


@pytest.mark.parametrize("devices", [1, 2])
def test_all_devices_of_a_trial_are_of_one_node(begin: Begin, tmp_path: Path, devices: int) -> None:
    resources = ResourceConfig(cpu=2.0, gpu=1.0)
    config = config_of(
        make_spec("ends"), tmp_path, devices=devices, resources=resources.model_dump_json()
    )
    anywhere = TrialProcess.default_resource_request(config)
    expected = {"CPU": 2.0 * devices, "GPU": 1.0 * devices}
    assert anywhere.bundles == [expected]
    there = TrialProcess.default_resource_request({**config, "node_ids": ["n1"]})
    assert there.bundles == [expected] and there != anywhere
