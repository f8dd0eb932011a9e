"""A local Ray cluster has what trials need, and nothing beside it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import processes
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
from processes import command_of
from ray._private import utils
from ray._private.node import Node
from tune_speed.tuning.ray.cluster import connected
from tune_speed.tuning.ray.compat import BYSTANDERS
from tune_speed.study.settings import ResourceConfig

def replaced():
    return [getattr(Node, name) for name in BYSTANDERS] + [utils.get_dashboard_dependency_error]

before = replaced()
with connected(None, resources=ResourceConfig(cpu=1)):
    children = psutil.Process().children(recursive=True)
    commands = [command_of(child) for child in children]
    is_restored = before == replaced()
is_restored = is_restored and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
gone, alive = psutil.wait_procs(children, timeout=20)
print(json.dumps([commands, is_restored, len(alive)]))
"""

IS_KILLED_ONCE = """
import json
import threading
import time
import psutil
import ray
from processes import command_of, is_alive
from tune_speed.study.settings import ResourceConfig
from tune_speed.tuning.ray.cluster import connected

def daemons():
    alive = [each for each in psutil.Process().children() if is_alive(each)]
    return sorted(each.name() for each in alive)

def kill_first():
    while True:
        for child in psutil.Process().children():
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

HELPERS = str(Path(processes.__file__).parent)
RAYLET = [SimpleNamespace(name=lambda: "raylet")]


def run(program: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(filter(None, [HELPERS, os.environ.get("PYTHONPATH")]))
    command, own = [sys.executable, "-c", program], {**os.environ, "PYTHONPATH": path}
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


def test_node_that_ended_while_it_started_is_not_waited_for(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_node(gcs_address: str, node_id: str) -> str:
        raise RuntimeError("No node info found")

    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(compat, "_daemons", lambda: RAYLET if clock[0] < 17 else [])
    with compat.patient(), pytest.raises(ConnectionError, match="ended while it started"):
        services.get_node("127.0.0.1:1", "node")
    assert clock[0] == pytest.approx(17, abs=0.2)
    # A cluster's node is no process of ours.
    with compat.patient(is_ours=False), pytest.raises(RuntimeError, match="No node info"):
        services.get_node("127.0.0.1:1", "node")


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
    monkeypatch.setattr(compat, "_daemons", lambda: RAYLET)
    with compat.patient():
        if is_found:
            assert services.get_node("127.0.0.1:1", "node") == "node"
        else:
            with pytest.raises(RuntimeError):
                services.get_node("127.0.0.1:1", "node")
    assert clock[0] == pytest.approx(min(registers_s, compat.START_LIMIT_S), abs=0.2)
    assert services.get_node is get_node


def test_socket_path_that_is_too_long_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ("x" * 107)).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("x" * 107)))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ServiceError, match=r"Ray's sockets need short paths.*Set TMPDIR"):
        connect(None, resources=ResourceConfig(cpu=1))
