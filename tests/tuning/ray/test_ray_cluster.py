import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from ray._private import services

from tune_speed.core.errors import ServiceError
from tune_speed.study.settings import ResourceConfig
from tune_speed.tuning.ray import compat
from tune_speed.tuning.ray.cluster import connect

STARTS_ONE = """
import json
import signal
import psutil
from helpers.processes import command_of
from tune_speed.tuning.ray.cluster import connected
from tune_speed.study.settings import ResourceConfig

with connected(None, resources=ResourceConfig(cpu=1)):
    children = psutil.Process().children(recursive=True)
    commands = [command_of(child) for child in children]
is_restored = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
gone, alive = psutil.wait_procs(children, timeout=20)
print(json.dumps([commands, is_restored, len(alive)]))
"""

IS_KILLED_ONCE = """
import json
import threading
import time
import psutil
import ray
from helpers.processes import command_of, is_alive
from tune_speed.study.settings import ResourceConfig
from tune_speed.tuning.ray.cluster import connected

def daemons():
    (head,) = [each for each in psutil.Process().children() if is_alive(each)]
    return sorted(each.name() for each in head.children() if is_alive(each))

def kill_first():
    while True:
        for child in psutil.Process().children(recursive=True):
            if command_of(child).split(" ")[0].endswith("/raylet"):
                child.kill()
                return
        time.sleep(0.01)

killer = threading.Thread(target=kill_first)
killer.start()
with connected(None, resources=ResourceConfig(cpu=1)):
    killer.join()
    answer = ray.get(ray.remote(num_cpus=1)(lambda: 7).remote())
    print(json.dumps([answer, daemons()]))
"""

FREEZES = """
import json
import os
import signal
import sys
import threading
import time
import psutil
import ray
from helpers.processes import command_of
from tune_speed.core.errors import ServiceError
from tune_speed.study.settings import ResourceConfig
from tune_speed.tuning.ray import cluster, health

victim, most, for_s, limit_s, stop_s = sys.argv[1], *map(float, sys.argv[2:])
health.START_LIMIT_S = cluster.START_LIMIT_S = limit_s
frozen, began_s = {}, []

def freeze():
    while True:
        for each in psutil.Process().children(recursive=True):
            # A raylet's command line names the workers' program, too.
            found = command_of(each).partition(" --python_worker_command")[0]
            if victim in found and each not in frozen and len(frozen) < most:
                each.suspend()
                frozen[each] = time.monotonic()
        for each, at_s in list(frozen.items()):
            if time.monotonic() > at_s + for_s and each.is_running():
                each.resume()
        if stop_s and frozen and not began_s and time.monotonic() > min(frozen.values()) + stop_s:
            began_s.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Thread(target=freeze, daemon=True).start()
answer = None
try:
    with cluster.connected(None, resources=ResourceConfig(cpu=1)):
        answer = ray.get(ray.remote(lambda: 7).remote())
except (ServiceError, KeyboardInterrupt) as error:
    answer = repr(error)
took_s = time.monotonic() - began_s[0] if began_s else 0.0
left = [command_of(each) for each in psutil.Process().children(recursive=True)]
print(json.dumps([answer, took_s, left]))
"""

TESTS = str(Path(__file__).parents[2])
DEAD = SimpleNamespace(name=lambda: "raylet", status=lambda: psutil.STATUS_ZOMBIE)


def run(program: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", program, *arguments]
    own = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_local_cluster_starts_without_bystanders_and_leaves_nothing() -> None:
    done = run(STARTS_ONE)
    assert done.returncode == 0, done.stderr
    commands, is_restored, num_alive = json.loads(done.stdout.splitlines()[-1])
    assert [name for name in ("gcs_server", "raylet") if name not in " ".join(commands)] == []
    unwanted = ("dashboard/dashboard.py", "_private/monitor.py", "log_monitor.py")
    assert [each for each in commands if any(f"{name} " in each for name in unwanted)] == []
    assert any("raylet/raylet" in each and "--minimal" in each for each in commands)
    assert (is_restored, num_alive) == (True, 0)


@pytest.mark.slow
def test_start_of_a_local_cluster_that_is_killed_is_tried_again() -> None:
    done = run(IS_KILLED_ONCE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [7, ["gcs_server", "raylet"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "most", "for_s", "limit_s", "stop_s", "answer"),
    [
        # Ray's own wait for its first workers has no end once these register after their time.
        pytest.param("default_worker.py", 2, 14, 120, 0, 7, id="workers, for a time"),
        pytest.param("raylet/raylet --", 3, 900, 5, 0, "need more than 5 s", id="node, for ever"),
        pytest.param(
            "gcs/gcs_server --", 1, 900, 120, 2, "KeyboardInterrupt", id="GCS, then Ctrl-C"
        ),
    ],
)
def test_start_whose_processes_are_frozen_ends(
    victim: str, most: int, for_s: float, limit_s: float, stop_s: float, answer: object
) -> None:
    arguments = [victim, *map(str, (most, for_s, limit_s, stop_s))]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # Ray's sockets need short paths.
        own = {"RAY_TMPDIR": folder, "RAY_worker_register_timeout_seconds": "10"}
        done = run(FREEZES, *arguments, **own)
        assert done.returncode == 0, done.stderr
        assert not os.listdir(folder)
    found, took_s, left = json.loads(done.stdout.splitlines()[-1])
    assert str(answer) in str(found)
    assert left == [] and took_s < 2.0


def test_dead_node_is_not_waited_for(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def get_node(gcs_address: str, node_id: str) -> str:
        raise RuntimeError("No node info found")

    monkeypatch.setattr(services, "get_node", get_node)
    own = SimpleNamespace(children=lambda: [DEAD] if clock[0] >= 17 else [])
    monkeypatch.setattr(compat.psutil, "Process", lambda: own)
    with compat.patient(120.0), pytest.raises(ConnectionError, match="ended while it started"):
        services.get_node("127.0.0.1:1", "node")
    assert clock[0] == pytest.approx(17, abs=0.2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only sleeping moves."""
    now = [0.0]
    monkeypatch.setattr(compat.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(compat.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    return now


@pytest.mark.parametrize(("registers_s", "is_found"), [(100.0, True), (1e6, False)])
def test_node_that_registers_late_is_waited_for(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, registers_s: float, is_found: bool
) -> None:
    def get_node(gcs_address: str, node_id: str) -> str:
        if clock[0] < registers_s:
            raise RuntimeError("No node info found")
        return node_id

    monkeypatch.setattr(services, "get_node", get_node)
    own = SimpleNamespace(children=list)
    monkeypatch.setattr(compat.psutil, "Process", lambda: own)
    with compat.patient(120.0):
        if is_found:
            assert services.get_node("127.0.0.1:1", "node") == "node"
        else:
            with pytest.raises(RuntimeError):
                services.get_node("127.0.0.1:1", "node")
    assert clock[0] == pytest.approx(min(registers_s, 120.0), abs=0.2)
    assert services.get_node is get_node


def test_long_socket_path_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ("x" * 107)).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("x" * 107)))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ServiceError, match=r"Ray's sockets need short paths.*Set TMPDIR"):
        connect(None, resources=ResourceConfig(cpu=1))
