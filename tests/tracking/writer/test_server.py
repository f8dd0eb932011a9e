import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from helpers.making import make_evaluation, make_record
from helpers.tracking.loopback import tcp_proxy
from helpers.tracking.servers import (
    MlflowServer,
    Postgresql,
    mlflow_server,
    postgresql,
    why_no_postgresql,
)
from helpers.tracking.stores import check_each_once, runs_of_trials

from tune_speed.core.errors import ServiceError
from tune_speed.tracking import Query, Store, Tracker, find_trial, find_trials, list_studies

pytestmark = pytest.mark.slow

CURVE = [0, 1, 2, 10]
"""Steps of what `run_trial` runs."""


@contextmanager
def losing_answers(uri: str) -> Iterator[tuple[str, list[str]]]:
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def backend() -> Iterator[Postgresql | None]:
    if why_no_postgresql() is not None:
        yield None
        return
    with postgresql() as backend:
        backend.run("postgres", "CREATE DATABASE served")
        yield backend


@pytest.fixture(scope="module")
def database(folder: Path, backend: Postgresql | None) -> str:
    return backend.uri("served") if backend else f"sqlite:///{folder}/mlflow.db"


@pytest.fixture(scope="module")
def server(folder: Path, database: str) -> Iterator[MlflowServer]:
    with mlflow_server(folder, backend_uri=database) as server:
        yield server


def track(uri: str, study: str) -> Tracker:
    return Tracker(Store(uri), study=study, study_tags={}, linger_s=0.1)


def run_trial(tracker: Tracker, trial_id: str, *, slowness: float = 1.0) -> None:
    tracker.trial_started(trial_id=trial_id, params={}, recipe={"batch_size": 32})
    evaluate(tracker, trial_id, slowness=slowness)
    tracker.trial_finished(record=make_record(trial_id, time_s=slowness))


def evaluate(tracker: Tracker, trial_id: str, *, slowness: float = 1.0) -> None:
    for step in range(3):
        evaluation = make_evaluation(step=step, train_s=slowness * step / 10)
        tracker.trial_evaluated(trial_id=trial_id, evaluation=evaluation)


def wait_for(condition: Callable[[], object], *, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.1)


def check(database: str, study: str, trial_ids: list[str]) -> None:
    for run in check_each_once(database, study, dict.fromkeys(trial_ids, "FINISHED")):
        assert run.steps() == CURVE, run.trial_id


def test_a_server_holds_a_study_and_links_to_it(
    server: MlflowServer, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = Tracker(Store(server.uri), study="plain", study_tags={})
    run_trial(tracker, "t0000")
    assert tracker.close(timeout_s=60) == ()
    trial = find_trial(Store(server.uri), "plain/t0000")
    assert trial.has_curve and trial.record == make_record()
    url = Store(server.uri).page(trial.experiment_id, trial.run_id)
    assert url is not None and url.startswith(server.uri) and trial.run_id in url
    assert capfd.readouterr() == ("", "")


def begin(tracker: Tracker, database: str, study: str) -> None:
    run_trial(tracker, "t0000")
    tracker.trial_started(trial_id="t0001", params={}, recipe={"batch_size": 32})
    evaluate(tracker, "t0001", slowness=2.0)
    wait_for(lambda: any(run.steps() == [0, 1, 2] for run in runs_of_trials(database, study)))


def cuts(asked: bytes, then: Callable[[], None]) -> Callable[[bytes, bytes], bool]:
    """Returns what keeps the good answers to such requests back, once `then` has been done."""

    def cut(request: bytes, answer: bytes) -> bool:
        if asked not in request or not answer.startswith(b"HTTP/1.1 200"):
            return False
        then()
        return True

    return cut


def test_a_killed_server_costs_no_search_anything(server: MlflowServer, database: str) -> None:
    """Three searches: one goes on without it, one ends meanwhile, and of one it took a trial.

    The last was not told so: the server died before it answered.
    """
    away, ended = track(server.uri, "away"), track(server.uri, "ended")
    with tcp_proxy(server.port) as proxy:
        untold = track(f"http://127.0.0.1:{proxy.port}", "untold")
        for tracker, study in ((away, "away"), (ended, "ended")):
            begin(tracker, database, study)
        proxy.cut_if = cuts(b"/runs/create", then=server.kill)
        run_trial(untold, "t0000")
        wait_for(lambda: proxy.num_cut)
        proxy.cut_if = lambda request, answer: False
        go_on_without(away, server)
        end_without(ended)
        server.start()
        assert untold.close(timeout_s=60) == ()
        check(database, "untold", ["t0000"])
    run_trial(away, "t0003")
    assert away.close(timeout_s=60) == () and away.trouble is None
    assert "answers again" in away.news()[0]
    check(database, "away", ["t0000", "t0001", "t0002", "t0003"])
    assert len(find_trials(Store(server.uri), Query(study="away"))) == 4
    check_what_a_resumed_search_delivers(server, database, "ended")


@pytest.mark.skipif(why_no_postgresql() is not None, reason=str(why_no_postgresql()))
def test_a_database_killed_under_a_server_costs_nothing(
    server: MlflowServer, database: str, backend: Postgresql
) -> None:
    tracker = track(server.uri, "behind")
    trials = [f"t{i:04d}" for i in range(8)]
    for trial_id in trials:
        run_trial(tracker, trial_id)
        if trial_id == trials[4]:
            wait_for(lambda: len(tracker.expected) < 4)  # In the midst of deliveries.
            backend.kill()
        if trial_id == trials[6]:
            wait_for(lambda: tracker.trouble)
            backend.start()
    assert tracker.close(timeout_s=60) == () and tracker.trouble is None
    check(database, "behind", trials)


def go_on_without(tracker: Tracker, server: MlflowServer) -> None:
    tracker.trial_finished(record=make_record("t0001"))
    tracker.trial_started(trial_id="t0002", params={}, recipe={"batch_size": 32})
    evaluate(tracker, "t0002", slowness=3.0)
    tracker.trial_interrupted(trial_id="t0002", reason="its process died")
    run_trial(tracker, "t0002")
    wait_for(lambda: tracker.trouble)
    assert "connection refused" in str(tracker.trouble)
    (line,) = tracker.news()
    assert "trials go on" in line and server.uri in line and tracker.news() == ()


def end_without(tracker: Tracker) -> None:
    run_trial(tracker, "t0001")  # Its attempt before broke off.
    start_s = time.monotonic()
    undelivered = tracker.close(timeout_s=2)
    assert time.monotonic() - start_s < 10
    assert "t0001" in {trial.trial_id for trial in undelivered}
    assert all("connection refused" in trial.reason for trial in undelivered)


def check_what_a_resumed_search_delivers(server: MlflowServer, database: str, study: str) -> None:
    for _ in range(2):
        resumed = track(server.uri, study)
        resumed.reconcile({name: make_record(name) for name in ("t0000", "t0001")})
        assert resumed.close(timeout_s=60) == ()
    runs = check_each_once(database, study, {"t0000": "FINISHED", "t0001": "FINISHED"})
    assert [run.steps() for run in runs] == [CURVE, [10]]  # The records made here hold one step.
    studies = {each.name: each for each in list_studies(Store(server.uri))}
    assert sum(studies[study].num_trials.values()) == 2
    assert len(find_trials(Store(server.uri), Query(study=study))) == 2


def test_lost_answers_leave_nothing_twice(server: MlflowServer, database: str) -> None:
    track(server.uri, "lossy").close(timeout_s=60)
    with losing_answers(server.uri) as (uri, lost):
        lost += ["POST set-experiment-tag", "POST update"]
        tracker = track(uri, "lossy")
        lost.remove("POST update")
        for trial_id in ("t0000", "t0001"):
            run_trial(tracker, trial_id)
        assert tracker.close(timeout_s=60) == ()
        assert {"POST create", "POST log-batch", "POST update", "PUT record.json"} <= set(lost)
    check(database, "lossy", ["t0000", "t0001"])


def test_what_a_frozen_server_takes_after_it_was_given_up_is_there_once(
    server: MlflowServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = track(server.uri, "frozen")
    run_trial(tracker, "t0000")
    wait_for(lambda: any(r.status == "FINISHED" for r in runs_of_trials(database, "frozen")))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    server.freeze()
    for i in range(1, 4):
        run_trial(tracker, f"t{i:04d}")
    wait_for(lambda: tracker.trouble)
    assert "no answer in time" in str(tracker.trouble)
    time.sleep(2)  # Some more requests, which the server takes later.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    server.thaw()
    assert tracker.close(timeout_s=60) == ()
    check(database, "frozen", [f"t{i:04d}" for i in range(4)])


def test_a_server_without_tls_says_so_to_who_expects_it(server: MlflowServer) -> None:
    with pytest.raises(ServiceError, match=r"does not speak TLS.*http://"):
        Store(server.uri.replace("http:", "https:")).create()
