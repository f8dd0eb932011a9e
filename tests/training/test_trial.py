import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib import metadata

import pytest
from helpers.making import make_run
from pydantic import ValidationError

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.core.records import Status, TrialRecord
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import (
    Allotment,
    TrialSpec,
    environment,
    failure,
    make_record,
    utc_now,
)
from tune_speed.training.workload import WORKLOADS


def make_spec() -> TrialSpec:
    return TrialSpec(
        study="study",
        trial_id="t0007",
        params={"batch_size": 64, "optimizer.sgd.lr": 0.1},
        recipe=Recipe(model=ResNet20(), optimizer=Sgd(lr=0.1), epochs=1.0, batch_size=64),
        workload=WORKLOADS["digits"],
        workload_hash="w" * 16,
        space_hash="s" * 16,
        seed=3,
        allotment=Allotment(device="cpu", cpu_threads=2, max_cotenants=1),
    )


def test_specification_survives_json() -> None:
    spec = make_spec()
    assert TrialSpec.model_validate_json(spec.model_dump_json()) == spec


def test_record_says_what_ran_where_and_how_it_ended() -> None:
    spec, run = make_spec(), make_run(Status.MISSED)
    ran = spec.recipe.with_micro_batch(16)
    record = make_record(spec, ran, run, started_at="2026-01-01T00:00:00.000+00:00")
    assert (record.status, record.runs, record.device) == (Status.MISSED, (run,), run.device)
    assert record.params["batch_size"] == 64
    assert (record.recipe["batch_size"], record.recipe["accumulation_steps"]) == (16, 4)
    assert (record.workload_name, record.workload["target"]["value"]) == ("digits", 0.97)
    assert (record.cpu_threads, record.max_cotenants, record.kind) == (2, 1, "estimate")
    assert record.time_to_target_s is None


def test_record_survives_json_without_nan() -> None:
    record = make_record(make_spec(), make_spec().recipe, make_run(), started_at=utc_now())
    text = json.dumps(record.model_dump(mode="json"), allow_nan=False)
    assert TrialRecord.model_validate_json(text) == record


def test_failure_keeps_reason_and_traceback() -> None:
    try:
        raise KeyError("no such layer\nand more")
    except KeyError as error:
        run = failure(make_spec(), error)
    assert (run.status, run.seed) == (Status.FAILED, 3)
    assert str(run.stop_reason).startswith("KeyError: 'no such layer")
    assert "\n" not in str(run.stop_reason)
    assert "test_failure_keeps_reason_and_traceback" in (run.traceback or "")
    assert str(failure(make_spec(), ValueError()).stop_reason) == "ValueError: no message"


def test_environment_holds_versions_host_and_commit() -> None:
    versions = environment()
    assert versions["torch"] == metadata.version("torch")
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"tune_speed", "host", "platform", "commit"} <= versions.keys()
    assert all(versions.values())


def test_times_are_utc_and_sortable() -> None:
    earlier, later = utc_now(), utc_now()
    moment = datetime.fromisoformat(later)
    assert earlier <= later
    assert moment.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - moment) < timedelta(seconds=10)


@pytest.mark.parametrize(
    "fields",
    [{"cpu_threads": 0}, {"cpu_fraction": 0.0}, {"cpu_fraction": 1.5}, {"gpu_fraction": -1}],
)
def test_allotment_that_cannot_be_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(fields))):
        Allotment(**fields)


def test_driver_side_needs_no_torch() -> None:
    code = "import sys, tune_speed.training.trial; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
