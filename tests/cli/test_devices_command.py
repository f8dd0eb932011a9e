"""Several devices, as a user runs them: `tune-speed train` and `tune-speed search`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command import TINY_STUDY, Done, environment, finished, ledger, start

pytestmark = pytest.mark.slow

STUDY = TINY_STUDY.replace("{choices: [25, 50]}", "25").replace("concurrent: 1", "concurrent: 3")
STUDY = STUDY.replace("trials: 6", "trials: 3") + "run: {device: cpu, cpu_threads: 1}\n"
RECIPE = STUDY.replace("{low: 0.02, high: 0.4, log: true}", "0.1")
RECIPE = RECIPE.replace("{low: 1, high: 10}", "6")
WAIT_S = 180.0

ON_FOUR_CPUS = """
import functools, sys, ray
ray.init = functools.partial(ray.init, num_cpus=4)
from tune_speed.cli.main import main
sys.exit(main())
"""


def search_on_four_cpus(folder: Path, *changes: str) -> subprocess.Popen[str]:
    """Starts a search on a local cluster that takes this machine to have four CPUs."""
    (folder / "tiny.yaml").write_text(STUDY)
    (folder / "search.py").write_text(ON_FOUR_CPUS)
    sets = [text for change in changes for text in ("--set", change)]
    return subprocess.Popen(
        [sys.executable, "search.py", "search", "tiny.yaml", *sets],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(process: subprocess.Popen[str], *, name: str, number: int = 2) -> list[psutil.Process]:
    """Returns the processes below `process` whose command says `name`, once there are so many."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
        found = [p for p in below if p.is_running() and name in _command(p)]
        if len(found) >= number:
            return found
        time.sleep(0.1)
    raise AssertionError(process.communicate())


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_train_on_two_devices_says_so(tmp_path: Path, call: Callable[..., Done]) -> None:
    (tmp_path / "a.yaml").write_text(RECIPE)
    done = call("train", "a.yaml", "--set", "recipe.devices=2", "--json", folder=tmp_path)
    assert done.code in (0, 1), done.err
    result = done.json["runs"][0]
    assert done.json["device"].startswith("2 x cpu (1 threads")
    assert (result["steps"], result["samples"]) == (36, 6 * 300)
    assert (result["batch_size"], result["accumulation_steps"]) == (25, 1)


def test_ctrl_c_ends_all_devices(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(RECIPE.replace("epochs: 6", "epochs: 500"))
    process = start("train", "a.yaml", "--set", "recipe.devices=2", folder=tmp_path)
    ranks = ranks_of(process, name="forkserver", number=3)  # And what they are forked from.
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not psutil.wait_procs(ranks, timeout=10)[1]


def test_search_whose_trials_do_not_all_fit_runs_them_all(tmp_path: Path) -> None:
    points = "search.points_to_evaluate=[{devices: 2}, {devices: 1}, {devices: 2}]"
    changes = ("recipe.devices={choices: [1, 2]}", "search.policy=time_to_target")
    process = search_on_four_cpus(tmp_path, *changes, points)
    _, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    records = finished(tmp_path)
    assert len(records) == 3
    assert {record["status"] for record in records} <= {"reached", "missed", "capped"}
    assert {record["recipe"]["devices"] for record in records} == {1, 2}
    for record in records:
        assert record["device"].startswith("2 x") == (record["recipe"]["devices"] == 2)


def test_trial_is_run_again_when_one_of_its_devices_dies(tmp_path: Path) -> None:
    changes = ("recipe.devices=2", "recipe.epochs=2000", "search.trials=1")
    process = search_on_four_cpus(tmp_path, *changes, "workload.max_train_s=5")
    ranks = ranks_of(process, name="RayTrainWorker")
    while not list((tmp_path / "turnstile").glob("*.tenants/*")):  # Until it trains.
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    ranks[0].kill()
    _, err = process.communicate(timeout=500)
    assert process.returncode in (0, 1), err
    (interrupted,) = (e for e in ledger(tmp_path) if e["event"] == "interrupted")
    assert "its process died" in interrupted["reason"]
    assert [record["status"] for record in finished(tmp_path)] == ["capped"]
