"""Trials on two devices of a Ray cluster that has room for two of them at a time."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import psutil
import pytest
import ray

from tune_speed.core.records import Status, TrialRecord
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.distributed.local import run_here
from tune_speed.training.distributed.supervisor import RanksDied
from tune_speed.training.objective import finish
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, TrialSpec
from tune_speed.training.workload import Workload
from tune_speed.tuning.ray.cluster import quiet_ray
from tune_speed.tuning.ray.multi_gpu import run_on_cluster
from tune_speed.tuning.ray.placement_groups import PlacementGroups
from tune_speed.tuning.ray.trial_process import TrialProcess

pytestmark = [
    pytest.mark.slow,
    # Of Ray Data, which Ray Train brings along: it warns of its own defaults.
    pytest.mark.filterwarnings("ignore:::ray.data.context"),
]

RESOURCES = ResourceConfig(cpu=1)
CPUS = 4
FREE_S = 30.0


class Outcomes(NamedTuple):
    """What became of three trials that were begun at once."""

    whole: TrialRecord
    stopped: TrialRecord
    died: str
    hung: TrialRecord
    free_cpus: float
    held_by_the_dead: float
    """CPUs that a trial holds whose own process was killed, after they were given back."""


def make_spec(trial_id: str, *, epochs: float = 2.0) -> TrialSpec:
    split = {"validation_frac": 0.2, "train_samples": 100, "validation_samples": 50}
    recipe = {
        "model": "resnet20",
        "optimizer": {"sgd": {"lr": 0.05}},
        "epochs": epochs,
        "batch_size": 8,
        "devices": 2,
    }
    workload = {"dataset": {"name": "digits"}, "target": {"value": 1.0}, "split": split}
    return TrialSpec(
        study="study",
        trial_id=trial_id,
        params={},
        recipe=Recipe.model_validate(recipe),
        workload=Workload.model_validate(workload),
        workload_hash="w" * 16,
        space_hash="s" * 16,
        seed=0,
        allotment=Allotment(device="cpu"),
    )


@cache
def holdings() -> PlacementGroups:
    return PlacementGroups()


def trial_of(spec: TrialSpec, *, hang_after_s: float = 600.0) -> Any:
    return run_on_cluster(
        spec,
        RESOURCES.model_dump_json(),
        holdings=holdings().name,
        interrupt=lambda: False,
        hang_after_s=hang_after_s,
    )


def run_to_end() -> TrialRecord:
    return finish(trial_of(make_spec("t0000")), on_report=lambda record: None)


def run_with_no_time_for_a_step() -> TrialRecord:
    trial = trial_of(make_spec("t0004", epochs=500.0), hang_after_s=0.001)
    return finish(trial, on_report=lambda record: None)


def run_until_stopped() -> TrialRecord:
    trial = trial_of(make_spec("t0001", epochs=500.0))
    next(trial)
    try:
        trial.send("others are faster")
    except StopIteration as end:
        record: TrialRecord = end.value
        return record
    raise AssertionError("it went on")


def run_until_a_worker_dies() -> Exception:
    before = workers()
    trial = trial_of(make_spec("t0002", epochs=500.0))
    next(trial)
    (workers() - before).pop().kill()
    try:
        finish(trial, on_report=lambda record: None)
    except RanksDied as error:
        return error
    raise AssertionError("nobody noticed")


def held_after_keeper_died() -> float:
    config = {
        "spec": make_spec("t0003", epochs=500.0).model_dump_json(),
        "folder": "unused",
        "stop_after_s": None,
        "resources": RESOURCES.model_dump_json(),
        "holdings": holdings().name,
        "hang_after_s": 600.0,
        "heartbeat_s": 1.0,
        "report_every_s": 0.05,
    }
    keeper = ray.remote(num_cpus=0)(TrialProcess).remote(config)
    while "record" not in ray.get(keeper.step.remote()):  # Signs of life, while the ranks start.
        pass
    ray.kill(keeper)
    holdings().release("t0003")
    return CPUS - free_cpus()


def workers() -> set[psutil.Process]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "RayTrainWorker" in " ".join(process.cmdline()):
                found.add(process)
    return found


def free_cpus() -> float:
    """Returns the CPUs that nobody holds, once they are all or time is up."""
    deadline = time.monotonic() + FREE_S
    while (free := ray.available_resources().get("CPU", 0.0)) < CPUS:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return float(free)


@pytest.fixture(scope="module")
def outcomes(session_cache: Any) -> Iterator[Outcomes]:
    """In a process of its own: one that was Ray's driver ends with whatever Ray stops later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield pool.submit(find_outcomes).result(timeout=500)


def find_outcomes() -> Outcomes:
    found: dict[str, Any] = {}

    def keep(name: str, run: Callable[[], Any]) -> None:
        found[name] = run()

    quiet_ray()
    ray.init(address="local", num_cpus=CPUS, include_dashboard=False, log_to_driver=False)
    holdings()  # Before threads could make one each.
    trials = {"whole": run_to_end, "stopped": run_until_stopped}
    threads = [threading.Thread(target=keep, args=item) for item in trials.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found["died"] = str(run_until_a_worker_dies())
    found["hung"] = run_with_no_time_for_a_step()
    found["free_cpus"] = free_cpus()
    found["held_by_the_dead"] = held_after_keeper_died()
    ray.shutdown()
    return Outcomes(**found)


def test_trials_that_fill_the_cluster_all_end(outcomes: Outcomes) -> None:
    assert outcomes.whole.status == Status.MISSED
    assert outcomes.whole.runs[0].samples == 200
    assert outcomes.whole.device.startswith("2 x cpu")


def test_trial_stops_at_an_evaluation_for_the_reason_given(outcomes: Outcomes) -> None:
    assert outcomes.stopped.stop_reason == "others are faster"
    assert outcomes.stopped.runs[0].samples <= 100


def test_worker_that_dies_ends_the_trial_and_frees_its_devices(outcomes: Outcomes) -> None:
    assert "Ray Train ended" in outcomes.died
    assert outcomes.free_cpus == CPUS


def test_trial_whose_ranks_hang_has_failed_with_their_stacks(outcomes: Outcomes) -> None:
    run = outcomes.hung.runs[-1]
    assert (run.status, run.stop_reason) == (Status.FAILED, "TrialHung: no step for 0 s")
    assert "Thread" in (run.traceback or "")


def test_trial_whose_own_process_dies_holds_nothing_after_its_release(outcomes: Outcomes) -> None:
    assert outcomes.held_by_the_dead == 0


def test_it_learns_what_it_learns_without_ray(outcomes: Outcomes) -> None:
    here = finish(run_here(make_spec("t0000")), on_report=lambda record: None)
    there = outcomes.whole.runs[0].evaluations
    for ours, theirs in zip(there, here.runs[0].evaluations, strict=True):
        assert (ours.step, ours.accuracy) == (theirs.step, theirs.accuracy)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
