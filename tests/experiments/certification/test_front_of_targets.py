"""What `certify --front` takes: of each target that was met what the search recommends there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from making import make_record

import tune_speed
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import LowerTarget, Status, TrialRecord
from tune_speed.experiments.certification import certify as certification
from tune_speed.tracking import Tracker, open_store

LOWER = tuple(
    LowerTarget(value=value, workload_name=f"at {value}", workload_hash=str(value) * 4)
    for value in (0.9, 0.8)
)


def record_of(number: int, *crossings: tuple[float, float], met: bool) -> TrialRecord:
    status = Status.REACHED if met else Status.MISSED
    record = make_record(f"t{number:04}", status, time_s=9.0, params={"lr": number})
    run = record.runs[0].model_copy(update={"crossings": crossings})
    target = {"metric": "accuracy", "value": 0.95, "values": [0.8, 0.9, 0.95]}
    workload = {**record.workload, "target": target}
    changes = {"workload": workload, "runs": (run,), "lower_targets": LOWER}
    return record.model_copy(update=changes)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    def fill(records: Sequence[TrialRecord]) -> str:
        client = open_store(uri)
        tracker = Tracker(client, study="study", study_tags={}, search_id="s", linger_s=0.02)
        for record in records:
            tracker.trial_finished(record=record)
        assert tracker.close(timeout_s=30) == ()
        return uri

    return fill


def test_targets_are_those_that_a_trial_met(store: Any) -> None:
    store([record_of(0, (0.8, 1.0), met=False), record_of(1, (0.9, 3.0), (0.8, 2.0), met=False)])
    assert certification.met_targets("study") == [0.9, 0.8]
    store([record_of(2, (0.9, 5.0), (0.8, 4.0), met=True)])
    assert certification.met_targets("study") == [None, 0.9, 0.8]


def test_estimates_of_a_lower_target_have_its_times_and_its_workload(store: Any) -> None:
    uri = store([record_of(0, (0.8, 1.0), met=False), record_of(1, (0.8, 2.0), met=True)])
    found = certification.find_estimates(uri, "study", None, 0.8)
    times = {each.record.trial_id: each.record.time_to_target_s for each in found}
    assert times == {"t0000": 1.0, "t0001": 2.0}
    assert {each.record.workload_hash for each in found} == {"0.8" * 4}
    (first,) = certification.choose_finalists(found, 1)
    assert first.record.trial_id == "t0000" and not first.record.lower_targets
    with pytest.raises(ConfigError, match="must have a trial that met its target"):
        certification.find_estimates(uri, "study", None, 0.9)


def test_each_target_is_certified_at_its_own(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store([record_of(0, (0.9, 3.0), (0.8, 1.0), met=True)])
    seen: list[tuple[Any, int]] = []

    def certify(study: str, **given: Any) -> certification.CertifyResult:
        seen.append((given["target"], given["config"].top))
        return certification.CertifyResult((), (), (), (), given["folder"], (), len(seen) == 2)

    monkeypatch.setattr(certification, "certify", certify)
    assert tune_speed.certify("study", front=True, progress=False).was_stopped
    # It was stopped at the second, and the third did not begin.
    assert seen == [(None, 1), (0.9, 1)]
    tune_speed.certify("study", progress=False)
    assert seen[2:] == [(None, 5)]
