"""A search on three nodes, MLflow and PostgreSQL behind it, of which one node is lost for good."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import servers
from command import TINY_STUDY, Done, finished, ledger, run
from ray_nodes import Cluster, RayNode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        servers.why_no_postgresql() is not None, reason=str(servers.why_no_postgresql())
    ),
]

TRIALS = 5
STUDY = TINY_STUDY.replace("epochs: {low: 1, high: 10}", "epochs: {low: 30, high: 40}")
WAIT_S = 200.0


class Outcome(NamedTuple):
    """What a search left that lost a node, and the store with it."""

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
    with (
        pytest.MonkeyPatch.context() as patch,
        servers.postgresql() as database,
        servers.mlflow_server(folder / "mlflow", backend_uri=database.uri()) as mlflow,
        Cluster(loses_nodes=True) as cluster,
    ):
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        nodes = [cluster.add(cpus=1, TUNE_SPEED_CACHE=str(session_cache)) for _ in range(3)]
        yield search_and_lose(folder, cluster, nodes, database, mlflow)


def search_and_lose(
    folder: Path, cluster: Cluster, nodes: list[RayNode], database: Any, mlflow: Any
) -> Outcome:
    lost: list[str] = []
    thief = threading.Thread(target=lambda: lost.extend(lose_a_node(folder, nodes)))
    thief.start()
    variables = {**cluster.variables, **mlflow.variables}
    command = ("search", "tiny.yaml", "--trials", str(TRIALS), "--concurrent", "3")
    done = run(*command, "--address", cluster.address, folder=folder, timeout_s=400, **variables)
    thief.join(WAIT_S)
    in_mlflow = [
        (str(name), str(status))
        for name, status in database.run(
            "postgres",
            "select r.name, r.status from runs r join tags t on r.run_uuid = t.run_uuid"
            " where t.key = 'mlflow.parentRunId' and r.lifecycle_stage = 'active' order by r.name",
        )
    ]
    return Outcome(
        done, ledger(folder), finished(folder), lost, in_mlflow, trial_processes_left(nodes)
    )


def lose_a_node(folder: Path, nodes: list[RayNode]) -> list[str]:
    """Kills a node that is not the head while a trial runs there; returns what ran anywhere then.

    Which trial runs where only Ray knows; the ledger says later which was begun again.
    """
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        for node in nodes[1:]:
            if finished(folder) and trial_processes_left([node]):
                running = sorted(unfinished(folder))
                node.kill()
                return running
        time.sleep(0.1)
    return []


def unfinished(folder: Path) -> set[str]:
    proposed = {e["trial_id"] for e in ledger(folder) if e["event"] == "proposed"}
    return proposed - {record["trial_id"] for record in finished(folder)}


def trial_processes_left(nodes: list[RayNode]) -> list[psutil.Process]:
    found = []
    for node in nodes:
        for process in node.processes:
            try:
                if "TrialProcess" in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
    return found


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
    assert all("it is run again" in event["reason"] for event in again)
    assert any("node" in event["reason"] for event in again), again


def test_no_process_of_a_trial_is_left(outcome: Outcome) -> None:
    assert outcome.left == []
