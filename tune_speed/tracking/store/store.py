"""Opens the store: the only way to an MLflow client."""

import logging
import os
import re
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tune_speed.core.errors import ServiceError
from tune_speed.tracking.store import sqlite
from tune_speed.tracking.store.errors import errors_of, within
from tune_speed.tracking.store.uri import sqlite_path, store_kind, strip_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from sqlalchemy import Engine

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


def open_store(uri: str, *, timeout_s: float = 10.0, create: bool = True) -> "MlflowClient":
    """Returns a client of the store at `uri` (see `tracking_uri`), which has been seen to answer.

    A missing SQLite store is created if `create`, whole and under a lock. A server has `timeout_s`
    to answer; the tables of a new database may take longer.

    Raises: ServiceError if it cannot be reached, is no MLflow, or is missing; StorageError if its
        file is damaged or cannot be written; ConfigError if it is no address of a store.
    """
    kind = store_kind(uri)
    if kind == "sqlite":
        return _open_sqlite(sqlite_path(uri), uri, create=create)
    load_mlflow()
    if kind == "database":
        with errors_of(uri):
            within(timeout_s, lambda: probe_database(uri))
        return _connect_to_database(uri)
    with errors_of(uri):
        within(timeout_s, lambda: probe_http(uri, timeout_s=timeout_s))
    return _connect(uri, timeout_s=timeout_s)


def open_experiment(client: "MlflowClient", study: str, *, tags: dict[str, str]) -> str:
    """Returns the experiment's id, found or created, with `tags` set. Raises: ServiceError."""
    uri = client.tracking_uri
    with errors_of(uri):
        found = client.get_experiment_by_name(study)
        if found is None:
            from mlflow.exceptions import MlflowException

            try:
                client.create_experiment(
                    study, artifact_root(client.tracking_uri, study), tags=tags
                )
            except MlflowException as error:
                # Another driver was faster.
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = client.get_experiment_by_name(study)
        refuse_deleted(found, uri)
        for key, value in tags.items():
            if found.tags.get(key) != value:
                client.set_experiment_tag(found.experiment_id, key, value)
    return str(found.experiment_id)


def refuse_deleted(experiment: Any, uri: str) -> None:
    """Raises a ServiceError if the experiment, None if there is none, was deleted."""
    if experiment is not None and experiment.lifecycle_stage != "active":
        raise ServiceError(
            f"the MLflow experiment {experiment.name!r} is deleted: it lies in the trash of"
            f" {strip_secrets(uri)}. Bring it back with `mlflow experiments restore"
            f" --experiment-id {experiment.experiment_id}`, or give the study another name."
        )


def artifact_root(uri: str, study: str) -> str | None:
    """Returns a study's folder as a file URI, safely named; None where the server chooses it."""
    kind = store_kind(uri)
    if kind == "http":
        return None
    parent = sqlite_path(uri).parent if kind == "sqlite" else Path.cwd()
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", study).strip("-")[:60]
    digest = sha256(study.encode("utf-8", "replace")).hexdigest()[:8]
    return (parent / "mlartifacts" / f"{slug}-{digest}".lstrip("-")).as_uri()


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
