"""The errors of MLflow and of what lies under it, and bounded waits for calls without a limit."""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

from tune_speed.core.errors import ServiceError, TuneSpeedError
from tune_speed.tracking.store import sqlite
from tune_speed.tracking.store.uri import sqlite_path, store_kind, strip_secrets


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
    if isinstance(error, TuneSpeedError):
        return error
    if store_kind(uri) == "sqlite":
        return sqlite.storage_error(sqlite_path(uri), Exception(_short(error)))
    short, place = _short(error), strip_secrets(uri)
    if short in _LET_IN:
        return ServiceError(
            f"the MLflow store at {place} does not let us in: {short}. {_LET_IN[short]}."
        )
    return ServiceError(
        f"the MLflow store at {place} does not answer: {short}. Check that it runs and that"
        " MLFLOW_TRACKING_URI is right, or unset that variable to keep results in ./mlflow.db."
    )


def _short(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not error.errno:
        return str(error)
    text = strip_secrets(str(error)).strip() or type(error).__name__
    for pattern, words in _KNOWN_REASONS:
        if pattern.search(text):
            return words
    return re.sub(r"^\([\w.]+\) ", "", text.splitlines()[0])[:300]


_UNTRUSTED, _NO_TLS = "its TLS certificate is not trusted", "it does not speak TLS"
_WRONG_LOGIN, _MAY_NOT = "the login is refused (401)", "the login may not do that (403)"
_WRONG_DATABASE_LOGIN = "the login is refused"
# What to try where a server runs, but not for us.
_LET_IN = {
    _UNTRUSTED: "Set MLFLOW_TRACKING_SERVER_CERT_PATH to a PEM file with the certificate of the"
    " authority that signed the server's",
    _NO_TLS: "Begin MLFLOW_TRACKING_URI with http://, or give the server a certificate",
    _WRONG_LOGIN: "Check MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or"
    " MLFLOW_TRACKING_TOKEN",
    _MAY_NOT: "Ask the server's administrator for the right to write the study's experiment, or"
    " give the study another name",
    _WRONG_DATABASE_LOGIN: "Check user and password in MLFLOW_TRACKING_URI",
}
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
    (re.compile("CERTIFICATE_VERIFY_FAILED"), _UNTRUSTED),
    (re.compile("WRONG_VERSION_NUMBER|wrong version number"), _NO_TLS),
    (re.compile("error code 401"), _WRONG_LOGIN),
    (re.compile("error code 403|^PERMISSION_DENIED"), _MAY_NOT),
    (re.compile("(?:password )?authentication failed", re.I), _WRONG_DATABASE_LOGIN),
)

Result = TypeVar("Result")


def within(timeout_s: float, function: Callable[[], Result]) -> Result:
    """Returns `function()`. Raises: TimeoutError after `timeout_s`; its thread continues."""
    return begun(function)(timeout_s)


def begun(function: Callable[[], Result]) -> Callable[..., Result]:
    """Begins a call; returns what waits for its end, so many seconds if it is given a number."""
    # A thread, as nothing can stop a name look-up or a connection attempt from outside.
    results: list[Result] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    run = copy_context().run  # Messages name options as the caller writes them.
    thread = threading.Thread(target=run, args=(call,), name="tune_speed-bounded-call", daemon=True)
    thread.start()

    def wait(timeout_s: float | None = None) -> Result:
        thread.join(timeout_s)
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError(f"no answer within {timeout_s:g} s")
        return results[0]

    return wait
