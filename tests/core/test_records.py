import json
from typing import Any

import pytest
from helpers.making import make_evaluation, make_record, make_run
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tune_speed.core.records import (
    Clocks,
    Recommended,
    RunResult,
    Status,
    Timing,
    TrialRecord,
    counts_of_ends,
    ended_as,
    named_settings,
)
from tune_speed.core.words import StopReason

SCALARS = st.one_of(
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.booleans(),
    st.none(),
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(min_size=1), SCALARS), st.sampled_from(list(Status)))
def test_record_reads_back_equal_from_json(params: dict[str, Any], status: Status) -> None:
    record = make_record(status=status, params=params)
    assert TrialRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize("status", list(Status))
def test_record_is_json_without_nan(status: Status) -> None:
    json.dumps(make_record(status=status).model_dump(mode="json"), allow_nan=False)


def test_nan_never_becomes_a_score() -> None:
    with pytest.raises(ValidationError, match="finite"):
        make_evaluation(accuracy=float("nan"))


def test_record_of_a_later_version_with_more_fields_still_reads() -> None:
    fields = make_record().model_dump(mode="json") | {"new_field": 1}
    assert TrialRecord.model_validate(fields) == make_record()


def test_metric_is_a_field_or_one_of_the_others_and_nothing_else() -> None:
    found = make_evaluation(accuracy=0.8).model_copy(update={"values": {"auc": 0.5, "step": 0.25}})
    assert (found.value("accuracy"), found.value("loss"), found.value("auc")) == (0.8, 0.1, 0.5)
    assert (found.value("step"), found.value("samples"), found.value("copy")) == (0.25, None, None)
    assert found.value("micro_f1") is None


def test_amortised_time_leaves_out_what_made_the_first_weights() -> None:
    run = make_run(time_s=5.0).model_copy(update={"init_s": 2.0})
    assert run.amortised_time_to_target_s == 3.0
    missed = make_run(Status.MISSED).model_copy(update={"init_s": 2.0})
    assert missed.amortised_time_to_target_s is None


def test_record_speaks_of_its_last_run() -> None:
    runs = (make_run(time_s=5.0), make_run(Status.MISSED))
    assert make_record(runs=runs).time_to_target_s is None
    assert make_record(runs=runs[::-1]).time_to_target_s == 5.0
    assert str(make_record(runs=runs).stop_reason) == "ended as missed"


def test_miss_costs_the_limit_only_where_a_run_may_end_at_any_time() -> None:
    record = make_record()
    limited = {**record.workload, "max_train_s": 60.0}
    anytime = record.model_copy(update={"workload": {**limited, "mode": "anytime"}})
    assert anytime.miss_s == 60.0
    assert record.model_copy(update={"workload": limited}).miss_s is None


def test_parameters_of_a_training_function_stay_as_its_author_called_them() -> None:
    params = {"lr_schedule": "step_drops"}
    fields = make_record(params=params).model_dump(mode="json")
    assert fields["params"] == {"lr_schedule": "multi_step"}
    own = fields | {"params": params, "workload": {"function_hash": "f"}}
    assert TrialRecord.model_validate(own).params == params
    assert TrialRecord.model_validate(own).is_own_loop
    assert not make_record().is_own_loop


def test_settings_of_a_function_are_what_it_was_called_with() -> None:
    assert named_settings({"params": {"lr": 0.1}}) == {"lr": 0.1}
    recipe = {"params": {"lr": 0.1}, "epochs": 2}
    assert named_settings(recipe) == recipe
    assert named_settings({"params": 3}) == {"params": 3}


def test_kind_of_device_is_in_its_name() -> None:
    assert make_record(device="cpu (2 threads, AMD EPYC)").device.kind == "cpu"
    assert make_record(device="NVIDIA H200").device.kind == "cuda"


CAPPED = {
    "stopped at 21.6 s: t0007, which is recommended, takes 19.9 s with restarts": "stopped",
    "max_train_s = 60 s passed with accuracy 0.9 not ≥ 0.97": "time limit",
    "would take 100 s of max_train_s = 60 s": "time limit",
    "interrupted": "interrupted",
}


@pytest.mark.parametrize("reason", CAPPED)
def test_what_ended_a_capped_run_is_told_in_a_word(reason: str) -> None:
    run = make_run(Status.CAPPED).model_copy(
        update={"stop_reason": StopReason.model_validate(reason)}
    )
    assert ended_as(run) == CAPPED[reason]
    assert ended_as(make_record(status=Status.CAPPED, runs=(run,))) == CAPPED[reason]


@pytest.mark.parametrize("status", [status for status in Status if status != Status.CAPPED])
def test_every_other_status_is_its_own_word(status: Status) -> None:
    assert ended_as(make_run(status)) == status.value
    assert counts_of_ends([make_record(status=status)] * 2) == {status.value: 2}


def test_a_count_of_one_run_is_said_in_the_singular() -> None:
    once = Recommended(study="study", trial_id="t0000", runs=1, hits=1, expected_s=2.5)
    assert once.text.startswith("t0000: 1 of 1 run met the target;")


NEEDED = {
    "study": "s",
    "trial_id": "t0000",
    "params": {},
    "recipe": {},
    "workload": {},
    "workload_name": "w",
    "workload_hash": "h",
    "space_hash": "p",
    "status": "failed",
    "runs": [{"status": "failed", "seed": 3, "stop_reason": "over"}],
}


UNKNOWN_CPU = {"type": "cpu", "count": 1, "threads": 0}


def test_record_of_the_barest_version_is_an_estimate_on_one_unshared_thread() -> None:
    record = TrialRecord.model_validate(NEEDED)
    dumped = record.model_dump(mode="json")
    assert dumped | NEEDED == dumped | {"runs": NEEDED["runs"]}
    given = {name: dumped[name] for name in dumped if name not in NEEDED}
    assert given == {
        "proposal_reason": {"kind": "none"},
        "evaluated_on": "validation",
        "kind": "estimate",
        "device": UNKNOWN_CPU,
        "cpu_threads": 1,
        "max_cotenants": 0,
        "protocol_version": 2,
        "environment": {},
        "started_at": "",
        "finished_at": "",
        "plugins": {},
        "certificate": None,
    }


def test_run_that_says_little_has_spent_nothing_and_shared_its_device() -> None:
    run = RunResult(status=Status.FAILED, seed=0, stop_reason="over")
    told = run.model_dump(mode="json", exclude={"status", "seed", "stop_reason", "clocks"})
    numbers = {"steps": 0, "samples": 0, "init_s": 0.0}
    words = {"timing": "shared", "device": UNKNOWN_CPU, "note": []}
    lists = {"evaluations": [], "step_times": [], "windows": [], "shape_steps": [], "cotenants": []}
    assert {name: value for name, value in told.items() if value is not None} == {
        **numbers,
        **words,
        **lists,
    }
    assert run.final is None
    assert set(Clocks().model_dump().values()) == {0.0}


def test_words_of_records_are_those_that_stores_hold() -> None:
    assert [status.value for status in Status] == [
        "reached",
        "missed",
        "capped",
        "oom",
        "diverged",
        "failed",
    ]
    assert [timing.value for timing in Timing] == ["isolated", "disturbed", "exclusive", "shared"]
