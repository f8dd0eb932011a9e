"""One request to a server before MLflow's own: MLflow itself would retry for minutes."""

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tune_speed.core.errors import ServiceError
from tune_speed.tracking.store.uri import strip_secrets

if TYPE_CHECKING:
    from sqlalchemy import Engine


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
    """Returns as whom we log in, in words and without secrets."""
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
