"""Trials on two devices of a Ray cluster that has room for two of them at a time."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import pytest
import ray

from tune_speed.core.records import Status, TrialRecord
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.distributed import supervisor
from tune_speed.training.distributed.local import run_here
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
    """What became of trials, two of which were begun at once."""

    answered: TrialRecord
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


def run_answered() -> TrialRecord:
    return answered(trial_of(make_spec("t0000", epochs=500.0)))


def answered(trial: Any) -> TrialRecord:
    """Lets a trial go on after its first evaluation, and stops it after its second."""
    next(trial)
    trial.send(None)
    try:
        trial.send("others are faster")
    except StopIteration as end:
        record: TrialRecord = end.value
        return record
    raise AssertionError("it went on")


def run_with_no_time_for_a_step() -> TrialRecord:
    trial = trial_of(make_spec("t0001"), hang_after_s=0.001)
    return finish(trial, on_report=lambda record: None)


def held_after_keeper_died() -> float:
    config = {
        "spec": make_spec("t0002", epochs=500.0).model_dump_json(),
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
    holdings().release("t0002")
    return CPUS - free_cpus()


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
    supervisor.GRACE_S = 1.0  # A rank that waits for one that hangs has no end of its own.
    trials = {"answered": run_answered, "hung": run_with_no_time_for_a_step}
    threads = [threading.Thread(target=keep, args=item) for item in trials.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found["free_cpus"] = free_cpus()
    found["held_by_the_dead"] = held_after_keeper_died()
    ray.shutdown()
    return Outcomes(**found)


def test_trial_that_is_answered_goes_on_or_stops_for_the_reason_given(outcomes: Outcomes) -> None:
    record = outcomes.answered
    assert (record.status, record.stop_reason) == (Status.CAPPED, "others are faster")
    assert record.device.startswith("2 x cpu")
    assert record.runs[0].samples == 200


def test_trials_that_filled_the_cluster_have_freed_their_devices(outcomes: Outcomes) -> None:
    assert outcomes.free_cpus == CPUS


def test_trial_whose_ranks_hang_has_failed_with_their_stacks(outcomes: Outcomes) -> None:
    run = outcomes.hung.runs[-1]
    assert (run.status, run.stop_reason) == (Status.FAILED, "TrialHung: no step for 0 s")
    assert "Thread" in (run.traceback or "")


def test_trial_whose_own_process_dies_holds_nothing_after_its_release(outcomes: Outcomes) -> None:
    assert outcomes.held_by_the_dead == 0


def test_it_learns_what_it_learns_without_ray(outcomes: Outcomes) -> None:
    here = answered(run_here(make_spec("t0000", epochs=500.0))).runs[0].evaluations
    there = outcomes.answered.runs[0].evaluations
    for ours, theirs in zip(there, here, strict=True):
        assert (ours.step, ours.accuracy) == (theirs.step, theirs.accuracy)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
