"""Where results are stored: tracking URIs, made absolute, and shown without their secrets."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.core.redact import redact

# Database servers that MLflow can use without a tracking server in front of them.
DATABASES = ("postgresql", "mysql", "mssql")

_SQLITE = re.compile(r"sqlite(?:\+pysqlite)?://(?P<path>/[^?]*)?(?P<query>\?.*)?")
_SECRET_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
_PASSWORD = re.compile(r"://[^\s:/@]*:([^\s]*)@")
SHORTEST_SECRET = 4


def tracking_uri(explicit: str | None = None) -> str:
    """Returns `explicit`, else $MLFLOW_TRACKING_URI, else `mlflow.db` here; its paths are absolute.

    Raises: ConfigError if it names a store that does not hold up: a folder of files, or memory.
    """
    uri = (explicit or os.environ.get("MLFLOW_TRACKING_URI") or "").strip()
    source = "the tracking URI" if explicit else "$MLFLOW_TRACKING_URI"
    if not uri:
        return _sqlite_uri(Path.cwd() / "mlflow.db", query="", source="the current directory")
    kind = store_kind(uri, source=source)
    return _absolute(uri, source=source) if kind == "sqlite" else uri.rstrip("/")


def store_kind(uri: str, *, source: str = "the tracking URI") -> str:
    """Returns `http`, `sqlite` or `database`. Raises: ConfigError for anything else."""
    scheme = uri.split(":", 1)[0].split("+", 1)[0].lower() if "://" in uri else ""
    if scheme in ("http", "https"):
        return "http"
    if scheme == "sqlite":
        return "sqlite"
    if scheme in DATABASES:
        return "database"
    known = ("http", "https", "sqlite", *DATABASES)
    near = did_you_mean(scheme, known) if scheme else ""
    raise ConfigError(
        f"{source} must begin with one of {', '.join(f'{name}://' for name in known)}, but got"
        f" {strip_secrets(uri)!r}{near or '.'} For a file: sqlite:////absolute/path/mlflow.db."
    )


def sqlite_path(uri: str) -> Path:
    match = _SQLITE.fullmatch(uri)
    assert match and match["path"], uri
    return Path(match["path"].removeprefix("/"))


def strip_secrets(text: str) -> str:
    """Returns `text` with passwords and tokens in URIs, and MLflow's own login, as `***`."""
    text = redact(text)
    secrets = {os.environ.get(name, "") for name in _SECRET_VARIABLES}
    if match := _PASSWORD.search(os.environ.get("MLFLOW_TRACKING_URI", "")):
        # An error may quote it as it is sent.
        secrets |= {match[1], unquote(match[1])}
    for secret in sorted(secrets, key=len, reverse=True):
        # What is shorter is part of other words.
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text


def _absolute(uri: str, *, source: str) -> str:
    match = _SQLITE.fullmatch(uri)
    path = (match["path"] or "").removeprefix("/") if match else ""
    if not match or path in ("", ":memory:") or path.startswith("file:"):
        raise ConfigError(
            f"{source} must name a file, such as sqlite:////absolute/path/mlflow.db, but got"
            f" {uri!r}."
        )
    return _sqlite_uri(Path(path).absolute(), query=match["query"] or "", source=source)


def _sqlite_uri(path: Path, *, query: str, source: str) -> str:
    if set("%?#") & set(str(path)):
        raise ConfigError(
            f"{source} must give a path without %, ? and #, which mean something else in a URI, but"
            f" got {path}. Choose a file with MLFLOW_TRACKING_URI=sqlite:////path/mlflow.db."
        )
    return f"sqlite:///{path}{query}"
