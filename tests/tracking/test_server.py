"""Against a real `mlflow server` on loopback, which is killed and started again in mid-study."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from making import make_evaluation, make_record

from tune_speed.tracking import Tracker, find_trial, find_trials, list_studies, open_store, run_url

pytestmark = pytest.mark.slow


class Server:
    """An MLflow server that can be killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with closing(socket.socket()) as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--workers",
            "1",
        ]
        command += [
            "--port",
            str(self.port),
            "--artifacts-destination",
            str(self._folder / "files"),
        ]
        command += ["--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + 120
        while not self._is_up():
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            time.sleep(0.2)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def _is_up(self) -> bool:
        try:
            with urlopen(f"{self.uri}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextmanager
def losing_answers(uri: str) -> Iterator[tuple[str, list[str]]]:
    """A proxy that passes all on, and loses the first answer of each endpoint not in `lost`."""
    lost: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            request = Request(uri + self.path, body or None, headers, method=self.command)
            with urlopen(request, timeout=30) as answer:
                content = answer.read()
            endpoint = f"{self.command} {self.path.split('?')[0].rsplit('/', 1)[-1]}"
            if self.command != "GET" and "search" not in endpoint and endpoint not in lost:
                lost.append(endpoint)
                self.close_connection = True
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_PATCH = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}", lost
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


def run_trial(tracker: Tracker, trial_id: str) -> None:
    tracker.trial_started(trial_id=trial_id, params={}, recipe={"batch_size": 32})
    for step in range(3):
        evaluation = make_evaluation(step=step, train_s=step / 10)
        tracker.trial_evaluated(trial_id=trial_id, evaluation=evaluation)
    tracker.trial_finished(record=make_record(trial_id))


def check_each_once(client: Any, tracker: Tracker, trial_ids: list[str]) -> None:
    runs = client.search_runs([tracker.experiment_id])
    ended = sorted((run.info.run_name, run.info.status) for run in runs)
    name = client.get_experiment(tracker.experiment_id).name
    assert ended == [(name, "FINISHED"), *((trial_id, "FINISHED") for trial_id in trial_ids)]
    for run in runs:
        curve = client.get_metric_history(run.info.run_id, "accuracy")
        assert sorted(m.step for m in curve) == ([] if run.info.run_name == name else [0, 1, 2, 10])


def test_a_server_holds_a_study_and_links_to_it(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = Tracker(open_store(server.uri), study="plain", study_tags={})
    run_trial(tracker, "t0000")
    assert tracker.close(timeout_s=60) == ()
    trial = find_trial(server.uri, "plain/t0000")
    assert trial.has_curve and trial.record == make_record()
    url = run_url(server.uri, trial)
    assert url is not None and url.startswith(server.uri) and trial.run_id in url
    assert capfd.readouterr() == ("", "")


def test_a_server_that_is_away_for_a_while_costs_no_trial(server: Server) -> None:
    client = open_store(server.uri)
    tracker = Tracker(client, study="study", study_tags={})
    run_trial(tracker, "t0000")
    tracker.trial_started(trial_id="t0001", params={}, recipe={"batch_size": 32})
    time.sleep(0.5)
    server.kill()
    run_trial(tracker, "t0001")
    run_trial(tracker, "t0002")
    time.sleep(1.5)
    assert tracker.trouble is not None and "connection refused" in tracker.trouble
    server.start()
    run_trial(tracker, "t0003")
    assert tracker.close(timeout_s=60) == () and tracker.trouble is None
    check_each_once(client, tracker, ["t0000", "t0001", "t0002", "t0003"])
    assert len(find_trials(server.uri, study="study")) == 4


def test_lost_answers_leave_nothing_twice(server: Server) -> None:
    Tracker(open_store(server.uri), study="lossy", study_tags={}).close(timeout_s=60)
    with losing_answers(server.uri) as (uri, lost):
        lost += ["POST set-experiment-tag", "POST update"]
        tracker = Tracker(open_store(uri), study="lossy", study_tags={})
        lost.remove("POST update")
        for i in range(3):
            run_trial(tracker, f"t{i:04d}")
        assert tracker.close(timeout_s=60) == ()
        assert {"POST create", "POST log-batch", "POST update", "PUT record.json"} <= set(lost)
    check_each_once(open_store(server.uri), tracker, ["t0000", "t0001", "t0002"])


def test_what_a_dead_server_missed_is_delivered_on_resuming(server: Server) -> None:
    client = open_store(server.uri)
    tracker = Tracker(client, study="resumed", study_tags={})
    run_trial(tracker, "t0000")
    tracker.trial_started(trial_id="t0001", params={}, recipe={"batch_size": 32})
    while len(client.search_runs([tracker.experiment_id])) != 3:
        time.sleep(0.1)
    server.kill()
    run_trial(tracker, "t0001")
    undelivered = tracker.close(timeout_s=2)
    assert "t0001" in {trial.trial_id for trial in undelivered}
    assert all("connection refused" in trial.reason for trial in undelivered)
    server.start()
    resumed = Tracker(client, study="resumed", study_tags={})
    resumed.reconcile([make_record("t0000"), make_record("t0001")])
    assert resumed.close(timeout_s=60) == ()
    studies = {study.name: study for study in list_studies(server.uri)}
    assert sum(studies["resumed"].num_trials.values()) == 2
    assert len(find_trials(server.uri, study="resumed")) == 2
