from pathlib import Path

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.tracking.store.uri import sqlite_path, strip_secrets, tracking_uri


def test_default_is_a_database_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    assert sqlite_path(tracking_uri()) == tmp_path / "mlflow.db"


def test_explicit_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://team:5000/")
    assert tracking_uri() == "http://team:5000"
    assert tracking_uri("sqlite:////data/m.db") == "sqlite:////data/m.db"


def test_relative_sqlite_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        tracking_uri("sqlite:///runs/m.db?timeout=3") == f"sqlite:///{tmp_path}/runs/m.db?timeout=3"
    )


@pytest.mark.parametrize(
    "uri",
    ["mlruns", "file:///tmp/mlruns", "sqlite://", "sqlite:///:memory:", "databricks", "htp://host"],
)
def test_stores_that_do_not_hold_up_are_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"sqlite:////absolute/path/mlflow\.db"):
        tracking_uri(uri)


def test_misspelt_scheme_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean `postgresql`"):
        tracking_uri("postgres://host/db")


def test_paths_that_mean_something_else_in_a_uri_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "100%").mkdir()
    monkeypatch.chdir(tmp_path / "100%")
    with pytest.raises(ConfigError, match="without %"):
        tracking_uri()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cr3t@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:a@b:c/d@host/db", "postgresql://me:***@host/db"),
        ("at http://me:pw@host:5000 now", "at http://me:***@host:5000 now"),
        ('{"a":"http://host:80/x","b":"c@d"}', '{"a":"http://host:80/x","b":"c@d"}'),
        ("mysql://h/db?password=x&ssl_key=y&z=1", "mysql://h/db?password=***&ssl_key=***&z=1"),
        ("sqlite:////tmp/mlflow.db", "sqlite:////tmp/mlflow.db"),
    ],
)
def test_secrets_in_uris_are_hidden(text: str, shown: str) -> None:
    assert strip_secrets(text) == shown


def test_the_login_of_mlflow_is_hidden_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "tok-12345")
    assert strip_secrets("Bearer tok-12345 refused") == "Bearer *** refused"


def test_the_password_of_the_address_is_hidden_wherever_it_stands_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:p%40ss%2Fword@host/db")
    shown = strip_secrets("login p@ss/word of p%40ss%2Fword refused by host/db")
    assert shown == "login *** of *** refused by host/db"
