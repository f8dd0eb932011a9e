import errno
from typing import Any

import psycopg2
import pytest
import sqlalchemy.exc
from helpers.making import make_evaluation, make_record
from mlflow.exceptions import MlflowException, RestException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, INTERNAL_ERROR, INVALID_STATE
from requests import HTTPError, Response

from tune_speed.core.records import Evaluation, Status, TrialRecord
from tune_speed.tracking import schema
from tune_speed.tracking.writer import descriptions
from tune_speed.tracking.writer.outbox import Outbox, deliver, is_permanent
from tune_speed.tracking.writer.runs import RunRef

KEY = ("estimate", "t0000")
PARAMS = {"batch_size": "64", "model.resnet20": "{}"}


class Told:
    def __init__(self, ref: RunRef | None = None, *, files: Exception | None = None) -> None:
        self.ref = ref or RunRef("r", 1000, "RUNNING")
        self.files_error = files
        self.calls: list[tuple[str, Any]] = []

    def begin(self, key: Any, *, params: Any, start_ms: int) -> RunRef:
        self.calls.append(("begin", (key, dict(params), start_ms)))
        return self.ref

    def write(self, ref: RunRef, *, points: Any = (), params: Any = None, tags: Any = None) -> None:
        assert ref is self.ref
        self.calls.append(("write", (list(points), dict(params or {}), dict(tags or {}))))

    def write_files(self, ref: RunRef, files: Any) -> None:
        self.calls.append(("files", set(files)))
        if self.files_error is not None:
            raise self.files_error

    def end(self, ref: RunRef, status: str) -> None:
        self.calls.append(("end", status))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def make_outbox(*, record: TrialRecord | None = None, **fields: Any) -> Outbox:
    outbox = Outbox(KEY, 5000, dict(PARAMS), ("batch_size",), **fields)
    if record is not None:
        outbox.take(record)
    return outbox


send: Any = deliver


@pytest.mark.parametrize("is_new", [True, False])
def test_only_a_trial_that_was_started_here_demands_that_its_run_fits(is_new: bool) -> None:
    runs = Told()
    assert send(make_outbox(is_new=is_new), runs) is None
    assert runs.calls[0] == ("begin", (KEY, PARAMS if is_new else {}, 5000))
    assert runs.names() == ["begin", "write"]


def test_begin_is_told_once_and_what_the_run_has_is_not_repeated() -> None:
    runs, outbox = Told(RunRef("r", 1000, "RUNNING", {"batch_size": "64"})), make_outbox()
    outbox.evaluations = [make_evaluation(step=1)]
    send(outbox, runs)
    start = schema.start_tags("t0000", kind="estimate") | schema.searched_tag(("batch_size",))
    points, params, tags = runs.calls[1][1]
    assert points == schema.curve_points(make_evaluation(step=1), start_ms=1000)
    assert (params, tags) == ({"model.resnet20": "{}"}, start)
    assert runs.ref.params == PARAMS and outbox.ref is runs.ref
    assert outbox.evaluations == [] and outbox.delivered == {schema.mark(make_evaluation(step=1))}
    outbox.evaluations = [make_evaluation(step=2)]
    send(outbox, runs)
    assert runs.names() == ["begin", "write", "write"]
    points, params, tags = runs.calls[2][1]
    assert points == schema.curve_points(make_evaluation(step=2), start_ms=1000)
    assert (params, tags) == ({}, {})


@pytest.mark.parametrize("status", [Status.REACHED, Status.MISSED, Status.FAILED])
def test_outcome_comes_after_the_files_and_the_last_status_at_the_very_end(status: Status) -> None:
    runs, record = Told(), make_record(status=status)
    assert send(make_outbox(record=record), runs) is None
    assert runs.names() == ["begin", "files", "write", "end"]
    assert runs.calls[1] == ("files", set(schema.artifact_files(record)))
    points, params, tags = runs.calls[2][1]
    assert points == schema.record_points(record, start_ms=1000, without=set())
    # It ran with 32 where 64 were proposed.
    assert params == PARAMS | schema.ran_entries(record.recipe, PARAMS)
    note = {descriptions.NOTE: descriptions.trial_note(record, run_id="r")}
    start = schema.start_tags("t0000", kind="estimate") | schema.searched_tag(("batch_size",))
    assert tags == start | schema.record_tags(record) | note
    assert runs.calls[3] == ("end", "FAILED" if status is Status.FAILED else "FINISHED")


def test_record_that_others_keep_is_asked_for_when_its_turn_comes() -> None:
    record, asked, runs = make_record(), list[str](), (Told(), Told())
    params = schema.param_entries(record.recipe, record.params)
    for told, proposed in zip(runs, (params, PARAMS), strict=True):
        outbox = Outbox(KEY, 5000, dict(proposed), ("batch_size",))
        outbox.take(record, lambda: asked.append("") or record)
        assert (outbox.params is None) == (proposed is params) and not asked
        send(outbox, told)
        ran = schema.ran_entries(record.recipe, proposed)
        assert told.calls[2][1][1] == proposed | ran and asked.pop() == ""
    assert "ran.batch_size" in runs[1].calls[2][1][1]


def test_curve_that_is_there_is_not_told_again_with_the_record() -> None:
    runs, outbox, record = Told(), make_outbox(), make_record()
    outbox.evaluations = list(record.runs[0].evaluations)
    send(outbox, runs)
    outbox.take(record)
    send(outbox, runs)
    seen = set(map(schema.mark, record.runs[0].evaluations))
    assert runs.names() == ["begin", "write", "files", "write", "end"]
    assert runs.calls[3][1][0] == schema.record_points(record, start_ms=1000, without=seen)


def test_curve_whose_clock_was_corrected_since_is_not_sent_again() -> None:
    runs, outbox, record = Told(), make_outbox(), make_record()
    live = [each.model_copy(update={"train_s": 2 * each.train_s}) for each in curve_of(record)]
    outbox.evaluations = live[:1]
    send(outbox, runs)
    outbox.evaluations = live[1:]
    outbox.take(record)
    send(outbox, runs)
    sent = [point for name, call in runs.calls if name == "write" for point in call[0]]
    steps = [point.step for point in sent if point.key == "accuracy"]
    assert steps == [each.step for each in curve_of(record)]


def curve_of(record: TrialRecord) -> list[Evaluation]:
    return list(record.runs[0].evaluations)


def test_interrupted_trial_says_why_and_is_killed() -> None:
    runs = Told()
    assert send(make_outbox(interrupted="Ctrl-C"), runs) is None
    assert runs.names() == ["begin", "write", "end"]
    note = {descriptions.NOTE: descriptions.interrupted_note("Ctrl-C")}
    start = schema.start_tags("t0000", kind="estimate") | schema.searched_tag(("batch_size",))
    assert runs.calls[1][1] == ([], PARAMS, start | schema.interrupted_tags("Ctrl-C") | note)
    assert runs.calls[2] == ("end", "KILLED")


def test_files_that_are_refused_for_good_are_named_and_the_rest_is_delivered() -> None:
    runs = Told(files=PermissionError("no place"))
    reason = send(make_outbox(record=make_record()), runs)
    assert reason == "its files could not be stored (PermissionError: no place)"
    assert runs.names() == ["begin", "files", "write", "end"]
    passing = Told(files=ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        send(make_outbox(record=make_record()), passing)
    assert passing.names() == ["begin", "files"]


@pytest.mark.parametrize("status", [399, 400, 401, 403, 404, 408, 409, 413, 425, 429, 499, 500])
def test_of_http_errors_those_that_the_request_caused_are_permanent(status: int) -> None:
    response = Response()
    response.status_code = status
    assert is_permanent(HTTPError(response=response)) is (status in (400, 404, 409, 413, 499))


def lost_connection() -> sqlalchemy.exc.DBAPIError:
    lost = psycopg2.OperationalError("server closed the connection unexpectedly")
    return sqlalchemy.exc.OperationalError("INSERT INTO metrics", {}, lost)


def bad_request_of(cause: Exception) -> MlflowException:
    error = MlflowException(str(cause), error_code=BAD_REQUEST)
    error.__cause__ = cause
    return error


def rest_error(code: str) -> RestException:
    return RestException({"error_code": code, "message": "no"})


TOO_LONG = sqlalchemy.exc.DataError("INSERT INTO tags", {}, psycopg2.DataError("value too long"))
OF_ONE_TRIAL = (
    PermissionError(errno.EACCES, "no"),
    NotADirectoryError(errno.ENOTDIR, "no"),
    FileExistsError(errno.EEXIST, "no"),
    KeyError("x"),
    TypeError("a bug of ours"),
    MlflowException("x", error_code=BAD_REQUEST),
    MlflowException("x", error_code=INVALID_STATE),
    rest_error("INVALID_PARAMETER_VALUE"),
    rest_error("RESOURCE_DOES_NOT_EXIST"),
    bad_request_of(TOO_LONG),
)
OF_THE_STORE = (
    OSError(errno.EIO, "no"),
    OSError(errno.ENOSPC, "No space left on device"),
    TimeoutError("late"),
    ConnectionError("gone"),
    MlflowException("x", error_code=INTERNAL_ERROR),
    MlflowException("API request failed: connection refused"),
    rest_error("TEMPORARILY_UNAVAILABLE"),
    rest_error("PERMISSION_DENIED"),  # The login is old.
    lost_connection(),  # As MLflow's rollback lets it through.
    bad_request_of(lost_connection()),
    bad_request_of(sqlalchemy.exc.PendingRollbackError("the connection is invalid")),
)


@pytest.mark.parametrize("error", [*OF_ONE_TRIAL, *OF_THE_STORE], ids=repr)
def test_permanent_is_what_the_trial_itself_causes(error: Exception) -> None:
    assert is_permanent(error) is (error in OF_ONE_TRIAL)


def test_a_connection_that_broke_is_found_below_whatever_wraps_it() -> None:
    broken = sqlalchemy.exc.DBAPIError("SELECT 1", {}, Exception(), connection_invalidated=True)
    refused = sqlalchemy.exc.DBAPIError("SELECT 1", {}, Exception())
    assert not is_permanent(broken)
    assert is_permanent(refused)
    wrapped = ValueError("while saving")
    wrapped.__context__ = broken
    assert not is_permanent(wrapped)


def test_a_trial_that_waits_keeps_its_curve_once() -> None:
    """A record of a trial whose process died has no curve: what came before it is all there is."""
    outbox = Outbox(("estimate", "t0000"), start_ms=0, params={})
    record = make_record()
    outbox.evaluations += [*record.runs[0].evaluations, make_evaluation(step=3)]
    outbox.take(record)
    assert [evaluation.step for evaluation in outbox.evaluations] == [3]


def test_only_what_is_new_is_due() -> None:
    outbox = Outbox(("estimate", "t0000"), start_ms=0, params={})
    assert outbox.is_due and not outbox.has_ended  # It has no run yet.
    outbox.ref = RunRef("r", 0, "RUNNING")
    assert not outbox.is_due
    outbox.evaluations.append(make_evaluation())
    assert outbox.is_due and not outbox.has_ended
    outbox.evaluations.clear()
    outbox.interrupted = "Ctrl-C"
    assert outbox.is_due and outbox.has_ended
    outbox.take(make_record())
    assert outbox.is_due and outbox.has_ended and outbox.interrupted is None
