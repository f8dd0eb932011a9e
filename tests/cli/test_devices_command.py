"""Several devices, as a user runs them: `tune-speed train` and `tune-speed search`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from helpers.command import TINY_STUDY, Done, environment, finished, ledger, start
from helpers.processes import command_of

from tune_speed.core.records import TrialRecord
from tune_speed.training.distributed.local import run_here
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, TrialSpec
from tune_speed.training.workload import Workload

pytestmark = pytest.mark.slow

STUDY = TINY_STUDY.replace("{choices: [25, 50]}", "25").replace("concurrent: 1", "concurrent: 3")
STUDY = STUDY.replace("trials: 6", "trials: 3") + "run: {device: cpu, cpu_threads: 1}\n"
RECIPE = STUDY.replace("{low: 0.02, high: 0.4, log: true}", "0.1")
RECIPE = RECIPE.replace("{low: 1, high: 10}", "6")
WAIT_S = 180.0


def search_on_two_cpus(folder: Path, *changes: str, **variables: str) -> subprocess.Popen[str]:
    """Starts a search on a local cluster that takes this machine to have two CPUs."""
    (folder / "tiny.yaml").write_text(STUDY)
    sets = [text for change in changes for text in ("--set", change)]
    return subprocess.Popen(
        [sys.executable, "-m", "tune_speed", "search", "tiny.yaml", *sets],
        cwd=folder,
        env={**environment(folder), "RAY_OVERRIDE_RESOURCES": '{"CPU": 2}', **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ranks_of(process: subprocess.Popen[str], *, name: str, number: int = 2) -> list[psutil.Process]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
        found = [p for p in below if p.is_running() and name in command_of(p)]
        if len(found) >= number:
            return found
        time.sleep(0.3)
    process.kill()  # Else it could be one that waits for ever.
    raise AssertionError(process.communicate())


def has_tenant(folder: Path, pid: int) -> bool:
    return any(folder.glob(f"turnstile/*.tenants/{pid}-*"))


def test_a_trial_on_more_devices_than_a_node_has_is_refused_before_it_begins(
    tmp_path: Path, session_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(session_cache))
    process = search_on_two_cpus(tmp_path, "recipe.devices={choices: [1, 3]}")
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2 and not (ledger(tmp_path)), err
    assert "recipe.devices: this machine must have the CPU of all devices of a trial" in err
    assert "3 × 1 asked for and 2 there" in err


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


@pytest.fixture(scope="module")
def searched(
    tmp_path_factory: pytest.TempPathFactory, session_cache: Path
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Ledger and records of a search without room for both trials, one of whose ranks is killed."""
    folder = tmp_path_factory.mktemp("searched")
    changes = (
        "recipe.devices={choices: [1, 2]}",
        "search.points_to_evaluate=[{devices: 2}, {devices: 1}]",
        "search.policy=time_to_target",
        "search.trials=2",
        "recipe.epochs=2000",
        # Else the run, which is to be killed, would end before it trains.
        "workload.mode=anytime",
        "workload.target.value=1.0",
        "workload.max_train_s=2",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        process = search_on_two_cpus(folder, *changes)
    ranks = ranks_of(process, name="forkserver", number=3)  # And what they are forked from.
    while not (training := [r for r in ranks if has_tenant(folder, r.pid)]):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    training[0].kill()
    _, err = process.communicate(timeout=500)
    assert process.returncode in (0, 1), err
    return ledger(folder), finished(folder)


def test_search_whose_trials_do_not_all_fit_runs_them_all(searched: Any) -> None:
    _, records = searched
    assert [record["status"] for record in records] == ["capped"] * 2
    assert {record["recipe"]["devices"] for record in records} == {1, 2}
    for record in records:
        assert record["device"].startswith("2 x") == (record["recipe"]["devices"] == 2)


def test_trial_is_run_again_when_one_of_its_devices_dies(searched: Any) -> None:
    events, records = searched
    (interrupted,) = (event for event in events if event["event"] == "interrupted")
    assert interrupted["reason"]["kind"] == "process_died"
    (record,) = (each for each in records if each["trial_id"] == interrupted["trial_id"])
    assert record["recipe"]["devices"] == 2


def test_ranks_learn_on_the_cluster_what_they_learn_without_it(searched: Any) -> None:
    """And go on after each evaluation, as the search answers."""
    _, records = searched
    (record,) = (each for each in records if each["recipe"]["devices"] == 2)
    there = TrialRecord.model_validate(record).runs[0]
    trial = run_here(
        TrialSpec(
            study="tiny",
            trial_id=record["trial_id"],
            params={},
            recipe=Recipe.model_validate(record["recipe"]),
            workload=Workload.model_validate(yaml.safe_load(STUDY)["workload"]),
            workload_hash="w" * 16,
            space_hash="s" * 16,
            seed=there.seed,
            allotment=Allotment(device="cpu", cpu_threads=1),
        )
    )
    next(trial)
    here = trial.send(None).runs[0]
    trial.close()
    assert len(there.evaluations) > len(here.evaluations) >= 2
    for ours, theirs in zip(there.evaluations, here.evaluations, strict=False):
        assert (ours.step, ours.accuracy) == (theirs.step, theirs.accuracy)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
