import errno

import psycopg2
import pytest
import sqlalchemy.exc
from helpers.making import make_evaluation, make_record
from mlflow.exceptions import MlflowException, RestException
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from requests import HTTPError, Response

from tune_speed.tracking.writer.outbox import Outbox, is_permanent
from tune_speed.tracking.writer.runs import RunRef


def http_error(status: int) -> HTTPError:
    response = Response()
    response.status_code = status
    return HTTPError(response=response)


def lost_connection() -> sqlalchemy.exc.DBAPIError:
    lost = psycopg2.OperationalError("server closed the connection unexpectedly")
    return sqlalchemy.exc.OperationalError("INSERT INTO metrics", {}, lost)


def bad_request_of(cause: Exception) -> MlflowException:
    error = MlflowException(str(cause), error_code=BAD_REQUEST)
    error.__cause__ = cause
    return error


def too_long() -> sqlalchemy.exc.DBAPIError:
    return sqlalchemy.exc.DataError("INSERT INTO tags", {}, psycopg2.DataError("value too long"))


@pytest.mark.parametrize(
    "error",
    [
        RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "no such tag"}),
        RestException({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such run"}),
        http_error(404),
        http_error(413),
        bad_request_of(too_long()),
        PermissionError("artifacts"),
        TypeError("a bug of ours"),
    ],
)
def test_what_concerns_one_trial_is_not_tried_again(error: Exception) -> None:
    assert is_permanent(error)


@pytest.mark.parametrize(
    "error",
    [
        MlflowException("API request failed: connection refused"),
        RestException({"error_code": "TEMPORARILY_UNAVAILABLE", "message": "locked"}),
        RestException({"error_code": "PERMISSION_DENIED", "message": "the login is old"}),
        lost_connection(),  # As MLflow's rollback lets it through.
        bad_request_of(lost_connection()),
        bad_request_of(sqlalchemy.exc.PendingRollbackError("the connection is invalid")),
        http_error(401),
        http_error(429),
        http_error(503),
        ConnectionError("gone"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_what_concerns_the_store_is_tried_again(error: Exception) -> None:
    assert not is_permanent(error)


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


def test_a_connection_that_broke_is_found_below_whatever_wraps_it() -> None:
    broken = sqlalchemy.exc.DBAPIError("SELECT 1", {}, Exception(), connection_invalidated=True)
    refused = sqlalchemy.exc.DBAPIError("SELECT 1", {}, Exception())
    assert not is_permanent(broken)
    assert is_permanent(refused)
    wrapped = ValueError("while saving")
    wrapped.__context__ = broken
    assert not is_permanent(wrapped)
