from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_record, make_run

from tune_speed.core.errors import ServiceError
from tune_speed.core.records import Status, Timing, TrialRecord
from tune_speed.core.words import read_notes
from tune_speed.experiments.certification.certify import _Session
from tune_speed.experiments.certification.schedule import (
    CertificationSchedule,
    CertifyConfig,
    CertifyLedger,
)
from tune_speed.tracking.reader.tables import TrackedTrial


class Device:
    """Has runs of these clocks, one after the other."""

    def __init__(self, *timings: Timing, status: Status = Status.REACHED) -> None:
        self.left: Iterator[Timing] = iter(timings)
        self.status = status

    def run(self, spec: Any) -> TrialRecord:
        own = {"timing": next(self.left), "note": read_notes("others took its core")}
        run = make_run(self.status, seed=spec.seed).model_copy(update=own)
        return make_record(spec.trial_id, self.status, runs=(run,))


def timings_after(device: Device, folder: Path) -> tuple[list[Timing], list[str]]:
    lines: list[str] = []
    recipe = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1}
    recipe["batch_size"] = 32
    record = make_record().model_copy(update={"recipe": recipe})
    only = TrackedTrial(run_id="", experiment_id="", record=record)
    plan = CertifyConfig(seeds=2, final=0, final_seeds=1)
    schedule = CertificationSchedule([only.name], leader=None, plan=plan, seed_base="", miss_s=None)
    with CertifyLedger(folder / "certify.jsonl") as ledger:
        turn = schedule.next()
        assert turn is not None
        session = _Session(ledger, schedule, [only], lines.append)
        session._take_turn(turn, device)  # type: ignore[arg-type]
        return [record.runs[0].timing for record in ledger.records.values()], lines


def test_a_run_that_strangers_disturbed_is_repeated(tmp_path: Path) -> None:
    device = Device(Timing.DISTURBED, Timing.EXCLUSIVE)
    timings, lines = timings_after(device, tmp_path)
    assert timings == [Timing.EXCLUSIVE], "the ledger has the one that counts"
    assert "runs again: it was not alone on the device (others took its core)" in lines[0]


def test_where_strangers_stay_the_run_counts_as_disturbed(tmp_path: Path) -> None:
    timings, lines = timings_after(Device(*[Timing.DISTURBED] * 3), tmp_path)
    assert timings == [Timing.DISTURBED]
    assert ["runs again" in line for line in lines] == [True, True, False, False]
    assert "counts as disturbed" in lines[2]


def test_trials_that_stay_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="others were there in 3 runs"):
        timings_after(Device(*[Timing.SHARED] * 3), tmp_path)


def test_a_run_that_failed_is_not_repeated_whoever_was_there(tmp_path: Path) -> None:
    timings, _ = timings_after(Device(Timing.SHARED, status=Status.FAILED), tmp_path)
    assert timings == [Timing.SHARED]


def test_why_a_run_missed_is_said(tmp_path: Path) -> None:
    _, lines = timings_after(Device(Timing.EXCLUSIVE, status=Status.MISSED), tmp_path)
    assert "missed: ended as missed  (at most 1 to go)" in lines[0]
