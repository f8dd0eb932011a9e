"""A local Ray cluster has what trials need, and nothing beside it."""

import json
import subprocess
import sys

import pytest

STARTS_ONE = """
import json
import psutil
from ray._private.node import Node
from tune_speed.tuning.ray.cluster import connect, disconnect
from tune_speed.tuning.ray.compat import BYSTANDERS
from tune_speed.study.settings import ResourceConfig

methods = [getattr(Node, name) for name in BYSTANDERS]
connect(None, resources=ResourceConfig(cpu=1))
children = psutil.Process().children(recursive=True)
commands = [" ".join(child.cmdline()) for child in children]
is_restored = methods == [getattr(Node, name) for name in BYSTANDERS]
disconnect()
gone, alive = psutil.wait_procs(children, timeout=20)
print(json.dumps([commands, is_restored, len(alive)]))
"""


@pytest.mark.slow
def test_local_cluster_starts_without_bystanders_and_leaves_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS_ONE], capture_output=True, text=True, check=True
    )
    commands, is_restored, num_alive = json.loads(done.stdout.splitlines()[-1])
    assert [name for name in ("gcs_server", "raylet") if name not in " ".join(commands)] == []
    unwanted = ("dashboard/dashboard.py", "_private/monitor.py", "log_monitor.py")
    assert [each for each in commands if any(f"{name} " in each for name in unwanted)] == []
    assert (is_restored, num_alive) == (True, 0)
