"""A search on a cluster that others started: as a job, and on from there through a client.

`test_node_loss.py` and `test_other_devices.py` search by its address.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers.command import TINY_STUDY, TUNE_SPEED, Done, finished, mlflow_runs, run, run_inside
from ray.job_submission import JobStatus, JobSubmissionClient
from ray_nodes import Cluster, listening

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
STUDY = TINY_STUDY.replace("epochs: {low: 1, high: 10}", "epochs: {low: 5, high: 10}")
"""Long enough for a process to begin on one node before the other has run all trials."""
SECONDS = 60.0
"""What is refused at once is refused within this, on a machine that is busy with other tests."""


class Joined(NamedTuple):
    cluster: Cluster
    folder: Path

    def search(self, *arguments: str, **variables: str) -> Done:
        command = ("search", "tiny.yaml", *arguments)
        return run(*command, folder=self.folder, **{**self.cluster.variables, **variables})

    def refused(self, *arguments: str, **variables: str) -> Done:
        """Runs a search that is refused before it would connect, in this process."""
        command = ("search", "tiny.yaml", "--set", "study=locked_out", *arguments)
        return run_inside(*command, folder=self.folder, **variables)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Iterator[Joined]:
    folder = tmp_path_factory.mktemp("joined")
    (folder / "tiny.yaml").write_text(STUDY)
    (folder / "counts").mkdir()
    with pytest.MonkeyPatch.context() as patch, Cluster(dashboard=True) as cluster:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        for name, gpus in (("one", 2), ("other", 1)):
            own = {"TUNE_SPEED_CACHE": str(folder / name), "DECODES": str(folder / "counts" / name)}
            cluster.add(cpus=1, gpus=gpus, PYTHONPATH=str(HERE / "counted"), **own)
        yield Joined(cluster, folder)


class Stopped(NamedTuple):
    kept: list[dict[str, Any]]
    """Records of its trials."""
    working_directory: str


class Jobs:
    def __init__(self, joined: Joined, folder: Path) -> None:
        (folder / "tiny.yaml").write_text(STUDY)
        self._environment: dict[str, Any] = {
            "working_dir": str(folder),
            "env_vars": {
                "TUNE_SPEED_STUDIES": str(joined.folder / "tune_speed_studies"),
                "MLFLOW_TRACKING_URI": f"sqlite:///{joined.folder}/mlflow.db",
            },
        }
        self._client = JobSubmissionClient(
            f"http://127.0.0.1:{joined.cluster.dashboard_port}",
            headers={"Authorization": f"Bearer {joined.cluster.token.read_text()}"},
        )

    def submit(self, command: str) -> str:
        return str(self._client.submit_job(entrypoint=command, runtime_env=self._environment))

    def stop(self, job: str) -> None:
        assert self._client.stop_job(job)
        assert self.status_of(job) == JobStatus.STOPPED

    def status_of(self, job: str) -> JobStatus:
        """Returns how the job ended, once it has."""
        deadline = time.monotonic() + 400
        while not (status := self._client.get_job_status(job)).is_terminal():
            assert time.monotonic() < deadline, self.said_by(job)
            time.sleep(0.5)
        return status

    def said_by(self, job: str) -> str:
        return str(self._client.get_job_logs(job))


@pytest.fixture(scope="module")
def stopped(joined: Joined, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """A search as a job that is stopped once a trial has finished."""
    jobs = Jobs(joined, tmp_path_factory.mktemp("job"))
    job = jobs.submit(f"pwd && exec {TUNE_SPEED} search tiny.yaml --address auto --trials 500")
    deadline = time.monotonic() + 300
    while not finished(joined.folder):
        assert time.monotonic() < deadline, jobs.said_by(job)
        time.sleep(0.5)
    jobs.stop(job)
    place = next(line for line in jobs.said_by(job).splitlines() if line.startswith("/"))
    return Stopped(finished(joined.folder), place)


@pytest.fixture(scope="module")
def resumed(joined: Joined, stopped: Stopped) -> Done:
    """The same search through a client, in two processes at once: one is on each node."""
    address = ("--address", joined.cluster.client_address)
    more = ("--resume", "--trials", str(len(stopped.kept) + 4), "--concurrent", "2")
    return joined.search(*more, *address)


def test_job_that_is_stopped_keeps_its_trials_and_a_search_through_a_client_resumes(
    joined: Joined, stopped: Stopped, resumed: Done
) -> None:
    assert resumed.code in (0, 1), resumed.err + joined.cluster.said("ray_client_server")
    number = len(stopped.kept) + 4
    assert f"{number} trials: " in resumed.out
    now = finished(joined.folder)
    assert now[: len(stopped.kept)] == stopped.kept
    names = [f"t{i:04d}" for i in range(number)]
    assert sorted(record["trial_id"] for record in now) == names
    assert mlflow_runs(joined.folder) == [(name, "FINISHED") for name in names]


def test_search_through_a_client_runs_on_all_nodes(joined: Joined, resumed: Done) -> None:
    assert "(2 nodes)" in resumed.err
    assert [record["status"] for record in finished(joined.folder)].count("failed") == 0


def test_each_node_decodes_the_data_once_into_its_own_cache(joined: Joined, resumed: Done) -> None:
    assert resumed.code in (0, 1), resumed.err
    for name in ("one", "other"):
        decodes = (joined.folder / "counts" / name).read_text().splitlines()
        entries = [path for path in (joined.folder / name).glob("digits-*") if path.is_dir()]
        assert (len(decodes), len(entries)) == (1, 1), name


def test_job_whose_results_would_be_thrown_away_is_refused(
    joined: Joined, stopped: Stopped, tmp_path: Path
) -> None:
    """A working directory of a job is told by its path, of which this one has the end."""
    assert stopped.working_directory.startswith(str(joined.cluster.folder))
    inside = tmp_path / "/".join(stopped.working_directory.split("/")[-3:])
    inside.mkdir(parents=True)
    (inside / "tiny.yaml").write_text(STUDY)
    done = run_inside("search", "tiny.yaml", folder=inside)
    assert done.code == 2
    assert "TUNE_SPEED_STUDIES" in done.err and "MLFLOW_TRACKING_URI" in done.err


def test_nodes_of_these_tests_listen_on_loopback_only(joined: Joined) -> None:
    places = [place for node in joined.cluster.nodes for place in listening(node.processes)]
    assert places
    assert [place for place in places if "127.0.0.1:" not in place] == []


@pytest.mark.parametrize("kind", ["address", "client_address"])
def test_wrong_token_is_refused_within_seconds(joined: Joined, tmp_path: Path, kind: str) -> None:
    (tmp_path / "token").write_text("f" * 64)
    started = time.monotonic()
    address = ("--address", getattr(joined.cluster, kind))
    done = joined.refused(*address, RAY_AUTH_TOKEN_PATH=str(tmp_path / "token"))
    assert done.code == 4, done.err
    assert str(tmp_path / "token") in done.err
    assert time.monotonic() - started < SECONDS


def test_missing_token_is_refused_within_seconds(joined: Joined, tmp_path: Path) -> None:
    started = time.monotonic()
    address = ("--address", joined.cluster.address)
    done = joined.refused(*address, HOME=str(tmp_path), RAY_AUTH_TOKEN_PATH="")
    assert done.code == 4, done.err
    assert "RAY_AUTH_TOKEN_PATH" in done.err
    assert time.monotonic() - started < SECONDS


def test_fractions_fill_gpus_and_no_trial_has_parts_of_two(joined: Joined) -> None:
    """Six trials of 0.4 on three GPUs, which are names only: this asks where Ray places them."""
    script = [sys.executable, str(HERE / "gpu_trials.py"), joined.cluster.address, "6", "0.4"]
    variables = {**os.environ, **joined.cluster.variables}
    done = subprocess.run(
        script, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [len(ids) for _, ids, _ in seen] == [1] * 6
    assert all(visible == ids[0] for _, ids, visible in seen)
    assert sorted(Counter((node, ids[0]) for node, ids, _ in seen).values()) == [2, 2, 2]
