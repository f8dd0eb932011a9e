"""A search on two nodes, of which one is lost for good."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from helpers.command import TINY_STUDY, Done, finished, ledger, mlflow_runs, run
from helpers.processes import command_of
from ray_nodes import Cluster, RayNode

pytestmark = pytest.mark.slow

TRIALS = 4
STUDY = TINY_STUDY.replace("epochs: {low: 1, high: 10}", "epochs: {low: 8, high: 10}")
WAIT_S = 200.0


class Outcome(NamedTuple):
    done: Done
    events: list[dict[str, Any]]
    records: list[dict[str, Any]]
    lost: list[str]
    """Trials that were running on the node when it was lost."""
    in_mlflow: list[tuple[str, str]]
    """Name and status of each trial's run."""
    left: list[psutil.Process]
    """Processes of the nodes after the search: none of a trial."""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Iterator[Outcome]:
    folder = tmp_path_factory.mktemp("node_loss")
    (folder / "tiny.yaml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch, Cluster(loses_nodes=True) as cluster:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        nodes = [cluster.add(cpus=1, TUNE_SPEED_CACHE=str(session_cache)) for _ in range(2)]
        yield search_and_lose(folder, cluster, nodes)


def search_and_lose(folder: Path, cluster: Cluster, nodes: list[RayNode]) -> Outcome:
    lost: list[str] = []
    thief = threading.Thread(target=lambda: lost.extend(lose_a_node(folder, nodes)))
    thief.start()
    command = ("search", "tiny.yaml", "--trials", str(TRIALS), "--concurrent", "2")
    address = ("--address", cluster.address)
    done = run(*command, *address, folder=folder, timeout_s=400, **cluster.variables)
    thief.join(WAIT_S)
    left = trial_processes_left(nodes)
    return Outcome(done, ledger(folder), finished(folder), lost, mlflow_runs(folder), left)


def lose_a_node(folder: Path, nodes: list[RayNode]) -> list[str]:
    """Kills the node that is not the head while a trial runs there; returns what ran then.

    Which trial runs where only Ray knows; the ledger says later which was begun again.
    """
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if finished(folder) and trial_processes_left(nodes[1:]):
            running = sorted(unfinished(folder))
            nodes[1].kill()
            return running
        time.sleep(0.1)
    return []


def unfinished(folder: Path) -> set[str]:
    proposed = {e["trial_id"] for e in ledger(folder) if e["event"] == "proposed"}
    return proposed - {record["trial_id"] for record in finished(folder)}


def trial_processes_left(nodes: list[RayNode]) -> list[psutil.Process]:
    below = [process for node in nodes for process in node.processes]
    return [process for process in below if "TrialProcess" in command_of(process)]


def test_search_ends_with_all_trials(outcome: Outcome) -> None:
    assert outcome.lost, "no node was lost"
    assert outcome.done.code == 0, outcome.done.err
    assert f"{TRIALS} trials: " in outcome.done.out
    statuses = Counter(record["status"] for record in outcome.records)
    assert statuses["failed"] == 0, outcome.records


def test_each_trial_is_in_ledger_and_mlflow_once(outcome: Outcome) -> None:
    names = [f"t{i:04d}" for i in range(TRIALS)]
    assert sorted(record["trial_id"] for record in outcome.records) == names
    assert outcome.in_mlflow == [(name, "FINISHED") for name in names]


def test_trials_of_the_lost_node_ran_again_elsewhere_with_the_reason_on_record(
    outcome: Outcome,
) -> None:
    again = [event for event in outcome.events if event["event"] == "interrupted"]
    assert {event["trial_id"] for event in again} <= set(outcome.lost)
    assert again, outcome.events
    assert all(event["reason"]["figures"]["runs_again"] for event in again)
    assert any(event["reason"]["kind"] == "node_died" for event in again), again


def test_no_process_of_a_trial_is_left(outcome: Outcome) -> None:
    assert outcome.left == []
