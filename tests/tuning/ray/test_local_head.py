"""The process that starts a local cluster: what it does about a driver, and a driver about it.

Programs stand for Ray's: they hang as its calls do, with the interpreter's lock held.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from helpers.processes import command_of, is_alive

from tune_speed.core.errors import ServiceError
from tune_speed.study.settings import ResourceConfig
from tune_speed.tracking.store.store import Store
from tune_speed.tuning import services
from tune_speed.tuning.ray import health
from tune_speed.tuning.ray.health import Head

SOON_S = 20.0
# A call of C that never returns, whatever signal comes, and keeps the lock.
HANG = (
    "import ctypes; lock = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock;"
    " lock[1](lock[0]); lock[1](lock[0])"
)
IGNORES_ALL = f"""
import signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
{HANG}
"""
# What a head does about its driver, which then joins, and hangs in that.
FOLLOWS = """
import os, socket, sys
from tune_speed.tuning.ray import health

health.LIMITS_S[health.JOINS] = float(sys.argv[2])
health._follow(socket.socket(fileno=int(sys.argv[1])), os.getppid())
"""
DRIVER = f"""
import signal, sys
from tune_speed.tuning.ray import health

health.KEEP = {FOLLOWS!r}.replace("sys.argv[2]", "'" + sys.argv[1] + "'")
with health.Head().watched():
    print("joins", flush=True)
    {HANG}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where Ray's folders would be; at the end this process has no cluster."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    yield tmp_path / "ray"
    if Head.own is not None:
        Head.own.end()


def head_that(program: str, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.setattr(health, "KEEP", program)
    return Head()


def below(head: Head) -> list[psutil.Process]:
    return [head._process, *head._process.children(recursive=True)]


def test_start_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = head_that(IGNORES_ALL, monkeypatch)
    session = folder / f"session_2026-01-01_{head._process.pid}"
    session.mkdir(parents=True)
    (folder / "session_latest").symlink_to(session)
    while len(below(head)) < 2:
        time.sleep(0.01)
    started = below(head)
    monkeypatch.setattr(health, "START_LIMIT_S", 0.05)
    with pytest.raises(ConnectionError, match="need more than"):
        head.address()
    began_s = time.monotonic()
    head.end()
    assert time.monotonic() - began_s < 2.0
    assert [command_of(each) for each in started if is_alive(each)] == []
    assert not folder.exists() and Head.own is None


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit", "the process that starts it has ended"),
        (
            "import os, sys; os.write(int(sys.argv[1]), b'Traceback:\\nOSError: no room\\n')",
            "no room",
        ),
    ],
)
def test_failed_start_says_why(program: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionError, match=said):
        head_that(program, monkeypatch).address()


def test_cluster_that_ended_is_dead_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    head = head_that("import sys; sys.stdin.read()\nraise SystemExit", monkeypatch)
    head._process.wait()
    assert head.cause() == "the process that keeps Ray's has ended"


@pytest.mark.parametrize(
    ("signals", "limit_s", "code"),
    [
        ([signal.SIGINT], 60.0, -signal.SIGKILL),
        ([signal.SIGINT, signal.SIGINT], 60.0, -signal.SIGKILL),
        ([], 1.0, -signal.SIGKILL),
    ],
)
def test_hanging_driver_is_ended(signals: list[signal.Signals], limit_s: float, code: int) -> None:
    command = ["env", "--default-signal=INT", sys.executable, "-c", DRIVER, str(limit_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as driver:
        assert driver.stdout is not None and driver.stderr is not None
        assert driver.stdout.readline() == b"joins\n"
        time.sleep(0.3)  # It hangs.
        heads = psutil.Process(driver.pid).children()
        began_s = time.monotonic()
        for number in signals:
            os.kill(driver.pid, number)
        try:
            assert driver.wait(SOON_S) == code
            assert time.monotonic() - began_s < 2.5
        finally:
            driver.kill()
        assert health.HANGS in driver.stderr.read().decode()
    assert psutil.wait_procs(heads, timeout=SOON_S)[1] == []


def test_driver_that_joins_in_time_ends_only_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    wakes = signal.set_wakeup_fd(-1)
    try:
        passed, head = False, head_that(FOLLOWS.replace("sys.argv[2]", "'60'"), monkeypatch)
        with pytest.raises(KeyboardInterrupt), head.watched():
            os.kill(os.getpid(), signal.SIGINT)
            passed = True
        assert passed and is_alive(head._process)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        assert signal.set_wakeup_fd(wakes) == -1
        signal.signal(signal.SIGINT, before)


def test_head_ends_with_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    head = head_that(FOLLOWS.replace("sys.argv[2]", "'60'"), monkeypatch)
    head._line.close()
    assert head._process.wait(SOON_S) == 0


def test_deleted_study_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    store = Store(uri)
    store.create().delete_experiment(store.open_experiment("gone", tags={}))
    monkeypatch.setattr(health, "KEEP", IGNORES_ALL)
    config = SimpleNamespace(resources=ResourceConfig(cpu=1))
    study: Any = SimpleNamespace(name="gone", search=config, loop=...)
    with pytest.raises(ServiceError, match="experiments restore"):
        services.store_and_ray(study, store, address=None, pin=None).__enter__()
    assert Head.own is None


def test_a_head_is_heard_in_a_process_with_a_thousand_open_files() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, 1100)) as high:
        assert high.fileno() >= 1100 and not health._is_heard(high, 0.0)
        theirs.send(b"x")
        assert health._is_heard(high, None) and high.recv(1) == b"x"
        theirs.close()
        assert health._is_heard(high, 0.0), "its end is heard too"
