from dataclasses import replace
from pathlib import Path

import pytest
from helpers.making import WORKLOAD, make_evaluation, make_record, make_run

from tune_speed.api.certified import certification_text, luck
from tune_speed.core.records import RunResult, Status
from tune_speed.experiments.certification.certify import CertifyResult
from tune_speed.experiments.certification.schedule import CertificationSchedule
from tune_speed.study.settings import CertifyConfig
from tune_speed.tracking.reader.tables import TrackedTrial

TARGET = WORKLOAD["target"]["value"]


def run_with(accuracy: float, *, time_s: float = 2.0, epochs: float = 4.0) -> RunResult:
    status = Status.REACHED if accuracy >= TARGET else Status.MISSED
    final = make_evaluation(train_s=time_s, accuracy=accuracy).model_copy(update={"epoch": epochs})
    return make_run(status, time_s=time_s).model_copy(update={"evaluations": (final,)})


def certified(*accuracies: float, time_s: float = 2.0) -> CertifyResult:
    estimate = make_record("t0002", time_s=1.6, study="study")
    finalist = TrackedTrial(run_id="", experiment_id="", record=estimate, has_curve=False)
    plan = CertifyConfig(seeds=len(accuracies), final=0, final_seeds=1)
    contest = CertificationSchedule(
        [finalist.name], leader=None, plan=plan, seed_base="", miss_s=None
    )
    for accuracy in accuracies:
        turn = contest.next()
        assert turn is not None
        contest.add(turn, run_with(accuracy, time_s=time_s))
    (placed,) = contest.ranks()
    record = make_record("t0002", runs=placed.runs, study="study")
    record = record.model_copy(update={"kind": "certified"})
    folder = Path("studies/study")
    return CertifyResult((record,), (finalist,), (estimate,), (placed,), folder, (), False)


def test_luck_is_the_certified_time_over_the_estimate() -> None:
    (row,) = luck(certified(0.95, 0.95, 0.85))
    assert (row["estimate_s"], row["certified_s"]) == (1.6, 2.0)
    assert row["ratio"] == pytest.approx(1.25)
    assert (row["hits"], row["n"]) == (2, 3)


def test_it_is_said_where_certified_runs_train_on_more_images() -> None:
    result = certified(TARGET + 0.01)
    assert "trained on" not in certification_text(result)
    (finalist,) = result.finalists
    workload = finalist.record.workload | {"certify_on": "train+validation"}
    more = replace(finalist, record=finalist.record.model_copy(update={"workload": workload}))
    text = certification_text(result._replace(finalists=(more,)))
    assert "(median of the hits, trained on train+validation)" in text


def test_a_finalist_that_never_hit_again_has_no_ratio_and_it_is_said() -> None:
    result = certified(0.85, 0.86, 0.85)
    assert luck(result)[0]["ratio"] is None
    assert "1.60 s → no time, 0 of 3 met the target again" in certification_text(result)
