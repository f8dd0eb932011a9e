"""The errors of MLflow and of what lies under it, in words and with what to try."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from tune_speed.errors import ServiceError, TuneSpeedError
from tune_speed.tracking import sqlite
from tune_speed.tracking.uri import sqlite_path, store_kind, strip_secrets


@contextmanager
def errors_of(uri: str) -> Iterator[None]:
    """Turns MLflow's errors within the block into ours, naming `uri` without its secrets."""
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, CommandError, sqlite3.Error, OSError) as error:
        raise explain(error, uri) from error


def explain(error: BaseException, uri: str) -> TuneSpeedError:
    """Returns `error`, met in talking to the store at `uri`, as an error with what to try."""
    if store_kind(uri) == "sqlite":
        return sqlite.storage_error(sqlite_path(uri), Exception(_short(error)))
    return ServiceError(
        f"the MLflow store at {strip_secrets(uri)} must answer, but got: {_short(error)}. Check"
        " that it runs and that MLFLOW_TRACKING_URI is right, or unset that variable to keep"
        " results in ./mlflow.db."
    )


def _short(error: BaseException) -> str:
    """Returns the error's innermost reason, in one line without secrets."""
    if isinstance(error, TimeoutError) and not error.errno:
        return str(error)
    text = strip_secrets(str(error)).strip() or type(error).__name__
    for pattern, words in _KNOWN_REASONS:
        if pattern.search(text):
            return words
    return re.sub(r"^\([\w.]+\) ", "", text.splitlines()[0])[:300]


_KNOWN_REASONS = (
    (
        re.compile("out-of-date database schema|Can't locate revision"),
        "the schema of another version of MLflow",
    ),
    (re.compile("Connection refused|actively refused"), "connection refused"),
    (re.compile("Name or service not known|NameResolutionError|nodename nor"), "unknown host"),
    (re.compile("ConnectTimeout|timed out|timeout exception"), "no answer in time"),
    (re.compile("Connection aborted|RemoteDisconnected|reset by peer"), "the connection broke off"),
    (re.compile("Network is unreachable|No route to host"), "network is unreachable"),
    (re.compile("CERTIFICATE_VERIFY_FAILED"), "its TLS certificate is not trusted"),
)
