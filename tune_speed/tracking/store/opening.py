"""Opens MLflow's client of a store; the errors of what lies under it, and bounded waits for it."""

import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tune_speed.core.errors import ServiceError, TuneSpeedError
from tune_speed.tracking.store import sqlite
from tune_speed.tracking.store.uri import sqlite_path, store_kind, strip_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from sqlalchemy import Engine

Result = TypeVar("Result")

# Longest wait for the tables of a new database server.
MIGRATION_S = 120.0
# Longest wait for another process that is creating the same SQLite file, which takes a second.
LOCK_S = 60.0

# Our defaults of MLflow's settings. What the user set in the environment holds.
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Each error reaches us as an exception as well.
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    # MLflow's own 7 retries of 120 s would block for a quarter of an hour; ours do not block.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


def load_mlflow() -> Any:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    import mlflow

    # Where something else imported it first, MLflow has read its variables already.
    logging.getLogger("mlflow").setLevel(os.environ["MLFLOW_LOGGING_LEVEL"].upper())
    return mlflow


def open_client(uri: str, *, create: bool, timeout_s: float = 10.0) -> "MlflowClient":
    """Returns a client of the store at `uri`; a missing file is created, whole, if `create`.

    Raises: ServiceError if it cannot be reached within `timeout_s`, is no MLflow, or is missing;
        StorageError if its file is damaged or cannot be written.
    """
    kind = store_kind(uri)
    if kind == "sqlite":
        return _open_sqlite(sqlite_path(uri), uri, create=create)
    load_mlflow()
    is_database = kind == "database"
    with errors_of(uri):
        probe = probe_database if is_database else partial(probe_http, timeout_s=timeout_s)
        within(timeout_s, partial(probe, uri))
    return _connect_to_database(uri) if is_database else _connect(uri, timeout_s=timeout_s)


def _open_sqlite(path: Path, uri: str, *, create: bool) -> "MlflowClient":
    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise sqlite.storage_error(path.parent, error) from error
        sqlite.check_space(path.parent)
    elif not path.is_file():
        raise ServiceError(
            f"there are no results in {path}: there is no such file yet. Run `tune-speed search"
            " digits_quickstart` first, or name another store with MLFLOW_TRACKING_URI."
        )
    load_mlflow()
    try:
        with sqlite.folder_lock(path.parent, timeout_s=LOCK_S):
            if not create:
                sqlite.check(path, writing=False)
                sqlite.analyze_if_outdated(path)
            elif path.exists() and path.stat().st_size > 0:
                sqlite.check(path, writing=True)
            else:
                with errors_of(uri):
                    sqlite.create(path)
            return _connect(uri, timeout_s=MIGRATION_S)
    except OSError as error:
        raise sqlite.storage_error(path, error) from error


def _connect(uri: str, *, timeout_s: float) -> "MlflowClient":
    mlflow = load_mlflow()

    def connect() -> "MlflowClient":
        client = mlflow.MlflowClient(uri, registry_uri=uri)
        client.search_experiments(max_results=1)
        return client

    with errors_of(uri):
        return within(timeout_s, connect)


def _connect_to_database(uri: str) -> "MlflowClient":
    # Of two drivers that make the tables of a new database, the one that comes second fails.
    deadline = time.monotonic() + MIGRATION_S
    while True:
        try:
            return _connect(uri, timeout_s=MIGRATION_S)
        except ServiceError as error:
            if not _LOST_RACE.search(str(error)) or time.monotonic() > deadline:
                raise
        time.sleep(1.0)


_LOST_RACE = re.compile("already exists|UniqueViolation|[Dd]uplicate|[Dd]eadlock")


def probe_http(uri: str, *, timeout_s: float) -> None:
    """Requests one experiment of an MLflow server, with MLflow's own login and TLS settings.

    Raises: ServiceError if it refuses us or is no MLflow server; MlflowException, OSError.
    """
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    response = http_request(
        get_default_host_creds(uri),
        "/api/2.0/mlflow/experiments/search",
        "POST",
        json={"max_results": 1},
        max_retries=0,
        timeout=timeout_s,
        raise_on_status=False,
    )
    if response.status_code in (401, 403):
        raise ServiceError(
            f"the MLflow server at {strip_secrets(uri)} does not let us in: it answered"
            f" {response.status_code} to {_login(uri)}. Set MLFLOW_TRACKING_USERNAME and"
            " MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN."
        )
    if response.status_code >= 500:
        raise OSError(f"HTTP status {response.status_code}")
    if response.status_code != 200 or not _is_json_object(response):
        raise ServiceError(
            f"what answers at {strip_secrets(uri)} is not an MLflow server (HTTP"
            f" status {response.status_code}, {response.headers.get('Content-Type', 'no type')})."
            " Check host, port and path of MLFLOW_TRACKING_URI; `mlflow server` listens on 5000."
        )


def probe_database(uri: str) -> None:
    """Connects once, unbounded. Raises: ServiceError without its driver; SQLAlchemyError."""
    engine_of(uri).connect().close()


def engine_of(uri: str) -> "Engine":
    """Returns an engine without a pool. Raises: ServiceError, SQLAlchemyError."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    try:
        return create_engine(uri, poolclass=NullPool)
    except ImportError as error:
        package = _DRIVER_PACKAGES.get(str(error.name), error.name)
        raise ServiceError(
            f"the database at {strip_secrets(uri)} needs the Python module {error.name!r}, which is"
            f" not installed. Install it with `pip install '{package}'`."
        ) from error


def _login(uri: str) -> str:
    if user := os.environ.get("MLFLOW_TRACKING_USERNAME") or urlsplit(uri).username:
        return f"user {user!r}"
    return "our token" if os.environ.get("MLFLOW_TRACKING_TOKEN") else "us, who gave no login"


def _is_json_object(response: Any) -> bool:
    try:
        return isinstance(response.json(), dict)
    except ValueError:
        return False


# Packages whose name is not that of their module.
_DRIVER_PACKAGES = {
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
}


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
