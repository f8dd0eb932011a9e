from pathlib import Path

import pytest
from helpers.making import make_record, make_run

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.study.file import StudyFile, load_study
from tune_speed.tracking import Store, Tracker
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import TrialSpec
from tune_speed.training.trial import make_record as record_of
from tune_speed.tuning import services
from tune_speed.tuning.driver.prior_trials import Machine
from tune_speed.tuning.services import (
    describe,
    read_earlier,
    read_related,
    refuse_unknown_studies,
)

STUDY = """
study: warm
workload: digits
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  epochs: {low: 1, high: 20}
  batch_size: 64
search: {warm_start: [old, warm, olt]}
"""


@pytest.fixture
def study(tmp_path: Path) -> StudyFile:
    file = tmp_path / "warm.yaml"
    file.write_text(STUDY)
    return load_study(file)


def trial_of(study: StudyFile, trial_id: str, status: Status) -> TrialRecord:
    params = {"optimizer.sgd.lr": 0.1, "epochs": 2}
    spec = TrialSpec(
        study="old",
        trial_id=trial_id,
        params=params,
        recipe=Recipe.model_validate(study.space.build(params)),
        workload=study.workload,
        workload_hash=study.workload.identity(data_hash="data"),
        space_hash=study.space.hash,
        seed=0,
    )
    return record_of(spec, spec.recipe, make_run(status), started_at="")


@pytest.fixture
def uri(tmp_path: Path, study: StudyFile) -> str:
    """A store with a study `old`: a trial that met its target, one that failed, a stranger."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracker = Tracker(Store(uri), study="old", study_tags={}, linger_s=0.02)
    tracker.trial_finished(record=trial_of(study, "t0000", Status.REACHED))
    tracker.trial_finished(record=trial_of(study, "t0001", Status.FAILED))
    tracker.trial_finished(record=make_record("t0002", study="old"))
    assert tracker.close(timeout_s=30) == ()
    return uri


def test_unknown_study_and_the_own_one_are_refused(study: StudyFile, uri: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_unknown_studies(study, study.search.warm_start, Store(uri))
    own, unknown = caught.value.problems
    assert (own.given, unknown.given) == ('"warm"', '"olt"')
    assert unknown.hint == "Did you mean `old`?"


def test_trials_come_from_mlflow_with_their_curves(study: StudyFile, uri: str) -> None:
    machine = Machine("cpu (1 threads, test)", "none")
    there = {"data_hash": "data", "machine": machine}
    found = read_earlier(study, "old", Store(uri), related=False, **there)
    (trial,) = found.trials
    assert trial.outcome.curve.metric.tolist() == [0.95]
    assert describe("old", *found) == (
        "warm start: 1 of 3 trials of old carry over, 0 of them with their times; left out: "
        "1 with an error, which says nothing of a recipe, "
        "1 with other data, split or evaluation grid"
    )


def test_auto_takes_what_is_of_this_task_and_what_is_related(study: StudyFile, uri: str) -> None:
    """Of other data and the same network recipes are read; this study itself is left out."""
    tracker = Tracker(Store(uri), study="warm", study_tags={}, linger_s=0.02)
    tracker.trial_finished(record=trial_of(study, "t0000", Status.REACHED))
    assert tracker.close(timeout_s=30) == ()
    machine = Machine("cpu (1 threads, test)", "none")
    same = read_related(study, Store(uri), "data", machine)
    assert [trial.task for trial in same["old"].trials] == [""] and set(same) == {"old"}
    (other,) = read_related(study, Store(uri), "other data", machine)["old"].trials
    assert (other.task, other.params) == ("old", {"optimizer.sgd.lr": 0.1, "epochs": 2})
    said = describe("old", (other,), {"another network and other data": 2})
    assert said == "warm start: the best recipes of old first, by 1 of its 3 trials"


def test_of_a_related_study_hits_and_misses_are_read_alike(
    study: StudyFile, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for half of its trials, half of its hits and half of its misses are read."""
    tracker = Tracker(Store(uri), study="many", study_tags={}, linger_s=0.02)
    for i in range(8):
        status = Status.REACHED if i < 4 else Status.MISSED
        tracker.trial_finished(record=trial_of(study, f"t{i:04d}", status))
    assert tracker.close(timeout_s=30) == ()
    monkeypatch.setattr(services, "MOST_OF_RELATED", 4)
    found = read_related(study, Store(uri), "other data", Machine("cpu", "none"))["many"]
    status = [trial.outcome.status for trial in found.trials]
    assert status == [Status.REACHED] * 2 + [Status.MISSED] * 2


def test_line_on_a_study_of_which_all_carries_over_is_short() -> None:
    assert describe("old", (), {}) == "warm start: 0 of 0 trials of old carry over"
