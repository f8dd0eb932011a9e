"""A local Ray: what starts with it, and what its processes have imported before a trial."""

import os
import sys
from collections.abc import Iterator

import psutil
import pytest
import ray

from tune_speed.search import local_ray
from tune_speed.search.ray_cluster import _quiet_ray
from tune_speed.search.settings import ResourceConfig

EXTRAS = ("dashboard/dashboard.py", "log_monitor.py", "autoscaler/_private/monitor.py")


@pytest.fixture(scope="module")
def local() -> Iterator[None]:
    _quiet_ray()
    os.environ.pop("OMP_NUM_THREADS", None)
    local_ray.start(ResourceConfig(cpu=1), at_once=os.cpu_count() or 1)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_trial_process_has_its_imports_before_it_is_asked_for_anything(local: None) -> None:
    def imported() -> tuple[bool, str]:  # Here, as a process cannot import this module.
        return "tune_speed.objective" in sys.modules, os.environ.get("OMP_NUM_THREADS", "")

    has_imports, threads = ray.get(ray.remote(num_cpus=1)(imported).remote(), timeout=120)
    assert has_imports
    assert threads == "1"
    assert "OMP_NUM_THREADS" not in os.environ


@pytest.mark.slow
def test_local_ray_starts_no_process_that_a_search_does_not_ask(local: None) -> None:
    children = psutil.Process().children(recursive=True)
    commands = [" ".join(child.cmdline()) for child in children]
    assert any("gcs_server" in command for command in commands)
    assert [command for command in commands for extra in EXTRAS if extra in command] == []


def test_user_s_threads_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with local_ray._threads(2):
        assert os.environ["OMP_NUM_THREADS"] == "7"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    monkeypatch.delenv("OMP_NUM_THREADS")
    with local_ray._threads(2):
        assert os.environ["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in os.environ
