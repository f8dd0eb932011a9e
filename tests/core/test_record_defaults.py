"""What a record says of what it was never told, as those of earlier versions were not."""

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.records import Clocks, RunResult, Status, Timing, TrialRecord

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
    words = {"timing": "shared", "device": UNKNOWN_CPU}
    lists = {
        "note": [],
        "evaluations": [],
        "step_times": [],
        "windows": [],
        "shape_steps": [],
        "cotenants": [],
    }
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


def test_problem_needs_no_more_than_its_path_and_what_must_hold() -> None:
    problem = Problem(path="a", must="must be 1")
    assert (problem.given, problem.hint, problem.file, problem.line) == (None,) * 4
    assert str(Problem(path="a", must="must be 1", file="f.yaml")) == "f.yaml: a: must be 1."
    error = ConfigError("first")
    assert (str(error), error.problems, error.exit_code) == ("first", (), 2)
