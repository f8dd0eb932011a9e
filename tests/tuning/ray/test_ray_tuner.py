"""Searches over a cluster of small nodes, whose trials do harm without training anything.

The cluster is Ray's own for tests: each node has a raylet, all are on this machine. A trial's
process is a child of its node's raylet.
"""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest
import ray
from helpers.making import make_run
from helpers.processes import command_of
from ray.cluster_utils import Cluster
from ray.tune.experiment import Trial as RayTrial

from tune_speed.core.errors import ServiceError, SetUpFailed
from tune_speed.core.records import Status, TrialRecord
from tune_speed.runtime import heartbeat
from tune_speed.study.file import load_study
from tune_speed.training.trial import Allotment, TrialSpec, make_record
from tune_speed.tuning.driver.controller import SearchController
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.ray import tuner
from tune_speed.tuning.ray.cluster import quiet_ray
from tune_speed.tuning.ray.compat import without_bystanders
from tune_speed.tuning.ray.trial_process import TrialProcess

pytestmark = pytest.mark.slow

STUDY = """
study: harmful
workload: digits
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0}}}
  epochs: 2
  batch_size: 64
search: {trials: 5, concurrent: 2, policy: random, hang_after: 8s, attempts: 2}
"""
ANYWHERE: Any = SimpleNamespace(
    is_local=True, placement=lambda: {"node_ids": [], "device_type": None}, device_type=None
)


class Harmful(TrialProcess):
    def _open(self, spec: TrialSpec, config: dict[str, Any]) -> Any:
        return harm(spec, Path(config["folder"]), self._interrupt)


def harm(spec: TrialSpec, folder: Path, interrupt: Callable[[], bool]) -> Iterator[TrialRecord]:
    if spec.study == "unset":
        raise SetUpFailed("a process must be set up, but got no device")
    yield make_record(spec, spec.recipe, make_run(Status.CAPPED), started_at="")
    for _ in range(20):
        time.sleep(0.05)
        heartbeat.beat()
    is_first = once(folder / f"{spec.trial_id} began")
    doing = "kills its node" if spec.study == "homeless" else DOINGS.get(spec.trial_id, "")
    if doing == "kills its node" and (is_first or spec.study == "homeless"):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    if doing == "freezes" and is_first:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)  # Another thread takes the signal: on a busy machine this one runs on.
    if doing == "hangs":
        time.sleep(600)
    if doing == "dies":
        os._exit(3)
    return make_record(spec, spec.recipe, make_run(), started_at="")


DOINGS = {"t0001": "kills its node", "t0002": "freezes", "t0003": "hangs", "t0004": "dies"}


def once(file: Path) -> bool:
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Outcomes(NamedTuple):
    records: dict[str, TrialRecord]
    reasons: list[tuple[str, str]]
    """Each interrupted trial, and why."""
    error: str
    left: list[str]
    """Processes of trials that were still there 20 s after the search's end."""
    num_held: int
    """Trials that Tune held in memory when the last one finished."""


@contextmanager
def cluster(number: int) -> Iterator[None]:
    quiet_ray()
    own = {"dashboard_agent_listen_port": 0}  # Any: by default all clusters want the same one.
    head = {"num_cpus": 0, "include_dashboard": False, **own}
    with without_bystanders():
        nodes = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(number):
            nodes.add_node(num_cpus=1, **own)
    try:
        ray.init(address=nodes.address, log_to_driver=False, logging_level="CRITICAL")
        yield
    finally:
        ray.shutdown()
        nodes.shutdown()


class Reasons:
    """An observer that keeps why trials were interrupted, and what Tune still holds in memory."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.num_held = 0

    def trial_finished(self, *, record: TrialRecord) -> None:
        gc.collect()
        self.num_held = sum(type(each) is RayTrial for each in gc.get_objects())

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        self.seen.append((trial_id, reason))

    def __getattr__(self, name: str) -> Any:
        return lambda **_: None


def search(study: str, folder: Path, *changes: str) -> Outcomes:
    folder = folder / study
    folder.mkdir()
    (folder / "study.yaml").write_text(STUDY.replace("harmful", study))
    reasons, error = Reasons(), ""
    with Ledger(folder / "study") as ledger:
        ledger.begin({"workload_hash": "w"})
        controller = SearchController(
            study=load_study(folder / "study.yaml", overrides=changes),
            ledger=ledger,
            allotment=Allotment(device="cpu"),
            observers=[reasons],
        )
        try:
            tuner.run_search(controller, ANYWHERE, on_tick=lambda: None, process=Harmful)
        except ServiceError as raised:
            error = str(raised)
        return Outcomes(
            dict(ledger.records), reasons.seen, error, left_after(20.0), reasons.num_held
        )


def search_in_turn(folder: Path) -> list[Outcomes]:
    """Searches of one cluster of two nodes: the first loses one, the last the other."""
    # Processes of trials import this file, and what it imports.
    own = [Path(__file__).parent, Path(__file__).parents[2], os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(str(each) for each in own)
    tuner.MARGIN_S = 5.0
    with cluster(2):
        done = [search(study, folder) for study in ("harmful", "unset")]
        # Ray counts the CPUs of a lost node for more than 11 s.
        return [*done, search("homeless", folder, "search.hang_after=15s")]


def left_after(seconds: float) -> list[str]:
    deadline = time.monotonic() + seconds
    while (left := trial_processes()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def trial_processes() -> list[str]:
    commands = map(command_of, psutil.Process().children(recursive=True))
    return [command for command in commands if "Harmful" in command]


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> list[Outcomes]:
    """In a process of its own, as Ray's driver ends with whatever Ray stops later."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(search_in_turn, tmp_path_factory.mktemp("turn")).result(timeout=550)


@pytest.fixture(scope="module")
def outcomes(searches: list[Outcomes]) -> Outcomes:
    return searches[0]


def test_each_trial_has_one_record_whatever_happened(outcomes: Outcomes) -> None:
    statuses = {trial_id: record.status for trial_id, record in outcomes.records.items()}
    assert statuses == {
        "t0000": Status.REACHED,
        "t0001": Status.REACHED,
        "t0002": Status.REACHED,
        "t0003": Status.FAILED,
        "t0004": Status.FAILED,
    }


def test_trial_of_a_lost_node_runs_again_at_no_attempt(outcomes: Outcomes) -> None:
    (reason,) = [why for trial_id, why in outcomes.reasons if trial_id == "t0001"]
    assert reason == "its node died, or cannot be reached; it is run again"


def test_frozen_process_is_killed_and_its_trial_runs_again(outcomes: Outcomes) -> None:
    reasons = [why for trial_id, why in outcomes.reasons if trial_id == "t0002"]
    assert "its process gave no sign of life for 8 s; it is run again" in reasons


def test_trial_that_hangs_has_failed_with_its_stacks(outcomes: Outcomes) -> None:
    run = outcomes.records["t0003"].runs[0]
    assert str(run.stop_reason) == "hung: no step for 8 s"
    assert "in harm" in (run.traceback or "")
    assert len(run.evaluations) == 1


def test_trial_whose_process_always_dies_fails_in_the_end(outcomes: Outcomes) -> None:
    assert outcomes.records["t0004"].stop_reason.kind == "process_died"
    reasons = [why for trial_id, why in outcomes.reasons if trial_id == "t0004"]
    assert len([why for why in reasons if "its node died" not in why]) == 1


def test_no_process_of_a_trial_is_left(outcomes: Outcomes) -> None:
    assert outcomes.left == []


def test_tune_holds_no_trial_that_has_ended(outcomes: Outcomes) -> None:
    """Of eight that it ran, those that run or have just ended; 20 kB of each stayed for ever."""
    assert 1 <= outcomes.num_held <= 3


def test_what_fails_in_the_set_up_is_said_at_once(searches: list[Outcomes]) -> None:
    _, outcomes, _ = searches
    assert outcomes.records == {}
    assert outcomes.error == "a process must be set up, but got no device"
    assert outcomes.error in [why for _, why in outcomes.reasons]


def test_search_without_a_node_ends_and_says_so(searches: list[Outcomes]) -> None:
    _, _, outcomes = searches
    assert outcomes.records == {}
    assert "a node must have room for a trial, which asks for 1 CPU" in outcomes.error
    assert "all nodes together have 0 CPU" in outcomes.error
    assert "--resume" in outcomes.error
