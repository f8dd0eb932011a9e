import base64
import json
import os
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from helpers.command import Done, finished, run_inside
from helpers.components.plugins import STUDY, write
from helpers.making import make_evaluation, make_record
from helpers.tracking.servers import MlflowServer, mlflow_server
from helpers.tracking.stores import check_curves, check_each_once

from tune_speed.components.plugins import registry
from tune_speed.core.errors import ServiceError
from tune_speed.tracking import Query, Store, Tracker, find_trials

pytestmark = pytest.mark.slow

USER, PASSWORD = "keeper", "correct-horse-7731"
FORMS = [PASSWORD.encode(), *(base64.b64encode(f"{USER}:{PASSWORD}".encode()).split(b"="))[:1]]
"""How it might be written: as it is, and as it stands in a request."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    folder = tmp_path_factory.mktemp("server")
    with mlflow_server(folder, login=(USER, PASSWORD), tls=True) as server:
        yield server


@pytest.fixture
def database(server: MlflowServer) -> str:
    return f"sqlite:///{server.log.parent}/mlflow.db"


@pytest.fixture
def let_in(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def set_password(server: MlflowServer, *, old: str, new: str) -> None:
    login = base64.b64encode(f"{USER}:{old}".encode()).decode()
    request = Request(
        f"{server.uri}/api/2.0/mlflow/users/update-password",
        json.dumps({"username": USER, "password": new, "current_password": old}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Basic {login}"},
        method="PATCH",
    )
    context = ssl.create_default_context(cafile=server.certificate)
    with urlopen(request, timeout=30, context=context) as answer:
        assert answer.status == 200


def refusal(server: MlflowServer, uri: str = "") -> str:
    with pytest.raises(ServiceError) as caught:
        Store(uri or server.uri).create()
    return str(caught.value)


def track(uri: str, study: str, **tags: str) -> Tracker:
    return Tracker(Store(uri), study=study, study_tags=tags, linger_s=0.05)


def run_trial(tracker: Tracker, trial_id: str) -> None:
    tracker.trial_started(trial_id=trial_id, params={}, recipe={"batch_size": 32})
    tracker.trial_evaluated(trial_id=trial_id, evaluation=make_evaluation(step=0, train_s=0.1))
    tracker.trial_finished(record=make_record(trial_id))


def test_the_right_login_reads_and_writes(
    server: MlflowServer, database: str, let_in: pytest.MonkeyPatch
) -> None:
    tracker = track(server.uri, "right")
    run_trial(tracker, "t0000")
    assert tracker.close(timeout_s=60) == ()
    check_each_once(database, "right", {"t0000": "FINISHED"})
    (trial,) = find_trials(Store(server.uri), Query(study="right"), with_curve=True)
    assert trial.has_curve and trial.record.trial_id == "t0000"


def test_a_login_within_the_address_works_and_is_kept_nowhere(
    server: MlflowServer, database: str, let_in: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        let_in.delenv(name)
    uri = server.uri.replace("//", f"//{USER}:{PASSWORD}@")
    tracker = track(uri, "within", store=uri)
    run_trial(tracker, "t0000")
    assert tracker.close(timeout_s=60) == ()
    check_each_once(database, "within", {"t0000": "FINISHED"})
    kept = [path for path in server.log.parent.rglob("*") if path.is_file()]
    assert any(b"within" in path.read_bytes() for path in kept)
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]


def test_a_wrong_login_is_refused_at_once_and_named(
    server: MlflowServer, let_in: pytest.MonkeyPatch
) -> None:
    let_in.setenv("MLFLOW_TRACKING_PASSWORD", "wrong-horse-1")
    message = refusal(server)
    assert f"answered 401 to user '{USER}'" in message and server.uri in message
    assert "MLFLOW_TRACKING_PASSWORD" in message and "wrong-horse" not in message


def test_no_login_is_refused_and_told_what_to_set(
    server: MlflowServer, let_in: pytest.MonkeyPatch
) -> None:
    let_in.delenv("MLFLOW_TRACKING_USERNAME")
    let_in.delenv("MLFLOW_TRACKING_PASSWORD")
    assert "answered 401 to us, who gave no login. Set MLFLOW_TRACKING_USERNAME" in refusal(server)
    let_in.setenv("MLFLOW_TRACKING_TOKEN", "tok-98765")
    message = refusal(server)
    assert "answered 401 to our token" in message and "tok-98765" not in message


def test_an_untrusted_certificate_is_refused_and_told_how_to_trust_it(
    server: MlflowServer, let_in: pytest.MonkeyPatch
) -> None:
    let_in.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
    message = refusal(server)
    assert "does not let us in: its TLS certificate is not trusted" in message
    assert "Set MLFLOW_TRACKING_SERVER_CERT_PATH to" in message and server.uri in message


def test_a_certificate_that_is_not_there_is_named(
    server: MlflowServer, let_in: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    let_in.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "none.pem"))
    assert "none.pem" in refusal(server)


@pytest.fixture
def no_plugins() -> Iterator[None]:
    yield
    registry.unload()


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Where Ray keeps its sessions; a short path, as sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="ts-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.usefixtures("no_plugins")
def test_search_with_login_and_tls_works_and_leaks_nothing(
    server: MlflowServer,
    database: str,
    tmp_path: Path,
    ray_folder: Path,
    call: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def show(*arguments: str, **variables: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return call(*arguments, folder=work)

    work = tmp_path / "work"
    work.mkdir()
    text = STUDY.replace("trials: 2", "trials: 1")
    (work / "tiny.yaml").write_text(f"{text}tracking: {{log_model: best}}\n")
    write(work)
    own = {**server.variables, "RAY_TMPDIR": str(ray_folder)}
    with links_to_logs(ray_folder, tmp_path / "logs"):
        search = run_inside("search", "tiny.yaml", "--plugin", "my_nets.py", folder=work, **own)
    assert search.code in (0, 1) and "warning" not in search.err, search.err
    assert "is logged: models:/" in search.out + search.err
    check_curves(database, "tiny", finished(work))
    address = server.uri.replace("//", f"//{USER}:{PASSWORD}@")
    in_address = {
        "MLFLOW_TRACKING_URI": address,
        "MLFLOW_TRACKING_SERVER_CERT_PATH": str(server.certificate),
    }
    wrong = {**server.variables, "MLFLOW_TRACKING_PASSWORD": "wrong-horse-1"}
    refused = show("leaderboard", **wrong)
    assert refused.code == 4 and f"answered 401 to user '{USER}'" in refused.err, refused.err
    assert "wrong-horse" not in refused.out + refused.err
    shown: list[Done] = [
        show("leaderboard", **own),
        show("show", "tiny/t0000", **in_address),
        show("report", "tiny", **in_address),
    ]
    assert [done.code for done in shown] == [0, 0, 0], shown
    assert "tiny/t000" in shown[0].out and server.uri in shown[1].out
    said = "".join([search.out, search.err, *(done.out + done.err for done in shown)])
    assert not [form for form in FORMS if form.decode() in said]
    assert (work / "report.html").is_file() and any((tmp_path / "logs").iterdir())
    assert leaks(work) + leaks(tmp_path / "logs") + leaks(server.log.parent) == []


@contextmanager
def links_to_logs(ray_folder: Path, kept: Path) -> Iterator[None]:
    """Keeps Ray's log files in another folder: a search removes them with their session."""
    kept.mkdir()
    has_ended = threading.Event()

    def link() -> None:
        while not has_ended.wait(0.1):
            # os.walk, unlike glob, passes over folders that Ray removes meanwhile.
            for folder, _, names in os.walk(ray_folder):
                for name in names if Path(folder).name == "logs" else ():
                    with suppress(FileExistsError, FileNotFoundError):
                        os.link(Path(folder) / name, kept / name)

    thread = threading.Thread(target=link)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def leaks(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 3
    return [path for path in files if any(form in path.read_bytes() for form in FORMS)]


def test_a_login_that_is_lost_in_mid_search_is_told_and_costs_nothing(
    server: MlflowServer, database: str, let_in: pytest.MonkeyPatch
) -> None:
    tracker = track(server.uri, "lost")
    run_trial(tracker, "t0000")
    while tracker.expected:
        time.sleep(0.1)
    changed = f"{PASSWORD}-2"
    set_password(server, old=PASSWORD, new=changed)
    try:
        run_trial(tracker, "t0001")
        while tracker.trouble is None:
            time.sleep(0.1)
        undelivered = tracker.close(timeout_s=0.5)
        assert [trial.trial_id for trial in undelivered] == ["t0001"]
        assert "the login is refused (401). Check MLFLOW_TRACKING_USERNAME" in undelivered[0].reason
        assert PASSWORD not in undelivered[0].reason
        let_in.setenv("MLFLOW_TRACKING_PASSWORD", changed)
        resumed = track(server.uri, "lost")
        resumed.reconcile({name: make_record(name) for name in ("t0000", "t0001")})
        assert resumed.close(timeout_s=60) == ()
    finally:
        set_password(server, old=changed, new=PASSWORD)
    check_each_once(database, "lost", {"t0000": "FINISHED", "t0001": "FINISHED"})
