"""What a search makes of the step times of a training function, which are those of one run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.custom.runs import make_task
from helpers.making import make_run

from tune_speed.core.records import Recommended, Status, StepTime, Timing, TrialRecord
from tune_speed.study.file import load_study
from tune_speed.tracking import schema
from tune_speed.training.trial import Allotment, make_record
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.ledger import Ledger

STUDY = """
study: own
workload: digits
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  epochs: {low: 1, high: 20}
  batch_size: 64
search: {trials: 9, policy: random}
"""


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[SearchController]:
    (tmp_path / "own.yaml").write_text(STUDY)
    study = replace(load_study(tmp_path / "own.yaml"), workload=make_task())
    with Ledger(tmp_path / "study") as ledger:
        ledger.begin({"workload_hash": "w"})
        yield SearchController(
            study=study,
            ledger=ledger,
            allotment=Allotment(device="cpu", max_cotenants=1),
            observers=[],
        )


def ended(controller: SearchController, *, place: str = "here") -> TrialRecord:
    spec = controller.propose()
    assert spec is not None
    step_time = StepTime(
        key=spec.trial_id,
        step_s=0.1,
        low_s=0.05,
        high_s=0.2,
        num_steps=9,
        measured_in=f"own/{spec.trial_id}",
        measured_at="2026-01-01T00:00:00.000+00:00",
        place=place,
        reference_s=0.001,
    )
    timed = {"step_times": (step_time,), "windows": (step_time,), "timing": Timing.ISOLATED}
    run = make_run(Status.REACHED).model_copy(update=timed)
    controller.finished(record := make_record(spec, spec.recipe, run, started_at=""))
    return record


def test_later_trials_are_told_how_fast_places_are_and_no_more(
    controller: SearchController,
) -> None:
    for place in ("here", "here", "there"):
        ended(controller, place=place)
    spec = controller.propose()
    assert spec is not None
    assert sorted(each.place for each in spec.step_times) == ["here", "there"]


def test_functions_are_not_timed_side_by_side(controller: SearchController) -> None:
    records = [ended(controller), ended(controller)]
    first = [
        Recommended(trial_id=record.trial_id, runs=1, hits=1, expected_s=1.0) for record in records
    ]
    controller.learning.policy = SimpleNamespace(favourites=tuple(first))  # type: ignore[assignment]
    assert controller.learning.rivals() == ()


def test_other_studies_do_not_learn_its_step_times(controller: SearchController) -> None:
    assert schema.own_windows(ended(controller)) == []
