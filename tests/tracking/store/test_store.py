import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tune_speed.core.errors import ConfigError, ServiceError, StorageError
from tune_speed.tracking import Store, schema
from tune_speed.tracking.reader.changes import experiments_of
from tune_speed.tracking.store.opening import load_mlflow, open_client, within


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refusal_of(uri: str, *, timeout_s: float = 10.0) -> tuple[str, float]:
    start_s = time.monotonic()
    with pytest.raises(ServiceError) as caught:
        open_client(uri, create=True, timeout_s=timeout_s)
    return str(caught.value), time.monotonic() - start_s


def test_importing_the_package_imports_no_mlflow() -> None:
    code = "import sys, tune_speed.tracking; print({'mlflow', 'torch'} & set(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "set()"


def test_an_absent_server_is_named_without_its_password() -> None:
    port = free_port()
    message, took_s = refusal_of(f"http://me:hunter2@127.0.0.1:{port}")
    assert f"http://me:***@127.0.0.1:{port} does not answer: connection refused" in message
    assert "hunter2" not in message and "MLFLOW_TRACKING_URI" in message
    assert took_s < 10


def test_a_server_that_never_answers_is_left_after_the_time_limit() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        message, took_s = refusal_of(f"http://127.0.0.1:{port}", timeout_s=0.2)
    assert "no answer" in message and took_s < 5


def test_an_unknown_host_is_named() -> None:
    message, took_s = refusal_of("http://no-such-host.invalid:5000")
    assert "no-such-host.invalid:5000 does not answer: unknown host" in message
    assert took_s < 13


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>hello</html>", "is not an MLflow server"),
        (404, b"<html>nothing here</html>", "is not an MLflow server"),
        (401, b"who are you?", "MLFLOW_TRACKING_USERNAME"),
        (403, b"no", "MLFLOW_TRACKING_TOKEN"),
        (503, b"later", "HTTP status 503"),
    ],
)
def test_servers_that_are_no_help_are_told_apart(status: int, body: bytes, said: str) -> None:
    with answering(status, body) as uri:
        message, _ = refusal_of(uri)
    assert said in message and uri in message


def test_a_database_without_its_driver_says_what_to_install() -> None:
    message, _ = refusal_of("mysql://me:hunter2@127.0.0.1:1/db")
    assert "pip install 'mysqlclient'" in message and "hunter2" not in message


def test_a_folder_of_files_is_no_store() -> None:
    with pytest.raises(ConfigError, match="must begin with one of"):
        Store("file:///tmp/mlruns").create()


def test_readers_do_not_create_a_store(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"no such file yet.*tune-speed search"):
        _ = Store(f"sqlite:///{tmp_path / 'mlflow.db'}").client
    assert list(tmp_path.iterdir()) == []


def test_a_store_of_another_mlflow_version_is_named(uri: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'from the future'")
        connection.commit()
    with pytest.raises(
        StorageError, match=r"mlflow\.db.*another version of MLflow.*mlflow db upgrade"
    ):
        Store(uri).create()


@pytest.mark.slow
def test_a_store_without_tables_is_filled(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    client = Store(f"sqlite:///{tmp_path / 'mlflow.db'}").create()
    assert client.search_experiments()


@pytest.mark.parametrize("folder", ["with space", "ünïcode", "plus+and&"])
def test_odd_folders_hold_store_and_artifacts(
    tmp_path: Path, folder: str, empty_store: Path
) -> None:
    (tmp_path / folder).mkdir()
    shutil.copy(empty_store, tmp_path / folder / "mlflow.db")
    store = Store(f"sqlite:///{tmp_path / folder / 'mlflow.db'}")
    run = store.client.create_run(store.open_experiment("study", tags={}))
    store.client.log_text(run.info.run_id, "hello", "note.txt")
    assert len(list((tmp_path / folder / "mlartifacts").rglob("note.txt"))) == 1


@pytest.mark.parametrize("study", ["../../etc/passwd", "/etc", "..", "a\nb", "x" * 400, "<script>"])
def test_no_study_name_leaves_the_folder(tmp_path: Path, study: str) -> None:
    root = Store(f"sqlite:///{tmp_path}/mlflow.db").artifact_root(study)
    assert root is not None
    path = Path(unquote(urlsplit(root).path))
    assert path.parent == tmp_path / "mlartifacts"
    assert path.resolve() == path and len(path.name) < 80


def test_studies_with_like_names_have_folders_of_their_own(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/mlflow.db")
    assert store.artifact_root("a/b") != store.artifact_root("a:b")


def test_an_experiment_is_found_again(store: Store) -> None:
    first = store.open_experiment('it\'s a "study"', tags={"k": "1"})
    assert store.open_experiment('it\'s a "study"', tags={"k": "2"}) == first
    assert store.client.get_experiment(first).tags["k"] == "2"


def test_a_deleted_experiment_says_how_to_bring_it_back(store: Store) -> None:
    experiment = store.open_experiment("gone", tags={})
    store.client.delete_experiment(experiment)
    with pytest.raises(ServiceError, match=f"restore --experiment-id {experiment}"):
        store.open_experiment("gone", tags={})


def test_a_reader_says_it_too_where_no_other_study_is_left(store: Store) -> None:
    experiment = store.open_experiment("gone", tags={schema.KIND: schema.STUDY_KIND})
    store.client.delete_experiment(experiment)
    for study in ("gone", None):
        with pytest.raises(ServiceError, match=f"restore --experiment-id {experiment}"):
            experiments_of(store, study)


def test_a_store_is_opened_once_and_again_where_its_file_is_another(
    store: Store, tmp_path: Path, empty_store: Path
) -> None:
    reader = store.client
    writer = store.create()
    assert writer is not reader and store.client is writer is store.create()
    (tmp_path / "mlflow.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(ServiceError, match="no such file yet"):
        _ = store.client
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    assert store.client is not writer


def test_a_store_that_keeps_silent_is_named(store: Store) -> None:
    never = threading.Event()
    with pytest.raises(StorageError, match=r"mlflow\.db .* no answer within 0\.1 s"):
        store.call(lambda _: never.wait(), timeout_s=0.1)
    never.set()


def test_mlflow_is_silenced_unless_the_user_says_otherwise(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert not logging.getLogger("mlflow.store.db.utils").isEnabledFor(logging.INFO)
    monkeypatch.setenv("MLFLOW_LOGGING_LEVEL", "info")
    load_mlflow()
    assert logging.getLogger("mlflow").level == logging.INFO


def test_gives_the_result_or_the_error() -> None:
    assert within(5, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


def test_none_is_a_result() -> None:
    assert within(5, lambda: None) is None


def test_waits_no_longer_than_asked() -> None:
    never = threading.Event()
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.1 s"):
        within(0.1, never.wait)
    assert time.monotonic() - start < 2
    never.set()
