"""A search on a cluster that others started: by its address, through a client, and as a job."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from command import TINY_STUDY, TUNE_SPEED, Done, finished, mlflow_runs, run
from ray_nodes import Cluster, listening

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
RAY = str(Path(sys.executable).parent / "ray")
SECONDS = 60.0
"""What is refused at once is refused within this, on a machine that is busy with other tests."""


class Joined(NamedTuple):
    """A cluster of two nodes and the folder in which it is searched."""

    cluster: Cluster
    folder: Path

    def search(self, *arguments: str, **variables: str) -> Done:
        command = ("search", "tiny.yaml", *arguments)
        return run(*command, folder=self.folder, **{**self.cluster.variables, **variables})


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Iterator[Joined]:
    folder = tmp_path_factory.mktemp("joined")
    (folder / "tiny.yaml").write_text(TINY_STUDY)
    (folder / "counts").mkdir()
    with pytest.MonkeyPatch.context() as patch, Cluster(dashboard=True) as cluster:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        for name in ("one", "other"):
            own = {"TUNE_SPEED_CACHE": str(folder / name), "DECODES": str(folder / "counts" / name)}
            cluster.add(cpus=2, gpus=2, PYTHONPATH=str(HERE / "counted"), **own)
        yield Joined(cluster, folder)


@pytest.fixture(scope="module")
def searched(joined: Joined) -> Done:
    """A search by address in three processes at once: two are on one node."""
    address = ("--address", joined.cluster.address)
    return joined.search("--trials", "3", "--concurrent", "3", *address)


def test_search_by_address_runs_on_all_nodes(joined: Joined, searched: Done) -> None:
    assert searched.code in (0, 1), searched.err
    assert "(2 nodes)" in searched.err
    assert [record["status"] for record in finished(joined.folder)].count("failed") == 0
    assert mlflow_runs(joined.folder) == [(f"t000{i}", "FINISHED") for i in range(3)]


def test_each_node_decodes_the_data_once_into_its_own_cache(joined: Joined, searched: Done) -> None:
    assert searched.code in (0, 1), searched.err
    for name in ("one", "other"):
        decodes = (joined.folder / "counts" / name).read_text().splitlines()
        entries = [path for path in (joined.folder / name).iterdir() if path.is_dir()]
        assert (len(decodes), len(entries)) == (1, 1), name


def test_nodes_of_these_tests_listen_on_loopback_only(joined: Joined) -> None:
    places = [place for node in joined.cluster.nodes for place in listening(node.processes)]
    assert places
    assert [place for place in places if "127.0.0.1:" not in place] == []


def test_search_through_a_client(joined: Joined) -> None:
    address = ("--address", joined.cluster.client_address)
    done = joined.search("--set", "study=client", "--trials", "1", *address)
    assert done.code in (0, 1), done.err
    assert len(finished(joined.folder, "client")) == 1


@pytest.mark.parametrize("kind", ["address", "client_address"])
def test_wrong_token_is_refused_within_seconds(joined: Joined, tmp_path: Path, kind: str) -> None:
    (tmp_path / "token").write_text("f" * 64)
    started = time.monotonic()
    address = ("--set", "study=locked_out", "--address", getattr(joined.cluster, kind))
    done = joined.search(*address, RAY_AUTH_TOKEN_PATH=str(tmp_path / "token"))
    assert done.code == 4, done.err
    assert "must know the token" in done.err and str(tmp_path / "token") in done.err
    assert time.monotonic() - started < SECONDS


def test_missing_token_is_refused_within_seconds(joined: Joined, tmp_path: Path) -> None:
    started = time.monotonic()
    address = ("--set", "study=locked_out", "--address", joined.cluster.address)
    done = joined.search(*address, HOME=str(tmp_path), RAY_AUTH_TOKEN_PATH="")
    assert done.code == 4, done.err
    assert "asks for a token" in done.err and "RAY_AUTH_TOKEN_PATH" in done.err
    assert time.monotonic() - started < SECONDS


def test_fractions_fill_gpus_and_no_trial_has_parts_of_two(joined: Joined) -> None:
    """Twelve trials of 0.3 on four GPUs, which are names only: this asks where Ray places them."""
    script = [sys.executable, str(HERE / "gpu_trials.py"), joined.cluster.address, "12", "0.3"]
    variables = {**os.environ, **joined.cluster.variables}
    done = subprocess.run(
        script, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [len(ids) for _, ids, _ in seen] == [1] * 12
    assert all(visible == ids[0] for _, ids, visible in seen)
    assert sorted(Counter((node, ids[0]) for node, ids, _ in seen).values()) == [3, 3, 3, 3]


class Jobs:
    """The cluster's jobs, whose working directory has the study file."""

    def __init__(self, joined: Joined) -> None:
        self.address = f"http://127.0.0.1:{joined.cluster.dashboard_port}"
        self.package = joined.folder / "package"
        self.package.mkdir(exist_ok=True)
        (self.package / "tiny.yaml").write_text(TINY_STUDY.replace("study: tiny", "study: job"))
        self._environment = {**os.environ, **joined.cluster.variables, "RAY_AUTH_MODE": "token"}

    def submit(self, *arguments: str, options: Sequence[str] = (), **variables: str) -> Done:
        """Submits a search and, unless options say otherwise, waits for its end."""
        runtime = ["--working-dir", str(self.package)]
        runtime += ["--runtime-env-json", json.dumps({"env_vars": variables})]
        search = [TUNE_SPEED, "search", "tiny.yaml", "--address", "auto", *arguments]
        return self.call("submit", *options, *runtime, "--", *search)

    def call(self, action: str, *arguments: str) -> Done:
        done = subprocess.run(
            [RAY, "job", action, "--address", self.address, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)


def test_job_whose_results_would_be_thrown_away_is_refused(joined: Joined) -> None:
    done = Jobs(joined).submit()
    assert done.code != 0
    assert "must keep its results outside of the job's working directory" in done.out
    assert "TUNE_SPEED_STUDIES" in done.out and "MLFLOW_TRACKING_URI" in done.out


def test_job_that_is_stopped_keeps_its_trials_and_another_job_resumes(joined: Joined) -> None:
    places = {
        "TUNE_SPEED_STUDIES": str(joined.folder / "tune_speed_studies"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{joined.folder}/jobs.db",
    }
    jobs = Jobs(joined)
    begun = jobs.submit(
        "--trials", "500", options=["--no-wait", "--submission-id", "one"], **places
    )
    assert begun.code == 0, begun
    deadline = time.monotonic() + 300
    while not finished(joined.folder, "job"):
        assert time.monotonic() < deadline, jobs.call("logs", "one")
        time.sleep(0.5)
    assert jobs.call("stop", "one").code == 0
    assert "was stopped" in jobs.call("status", "one").out
    kept = finished(joined.folder, "job")
    resumed = jobs.submit("--resume", "--trials", str(len(kept) + 1), **places)
    assert f"{len(kept) + 1} trials: " in resumed.out, resumed.out + resumed.err
    now = finished(joined.folder, "job")
    assert now[: len(kept)] == kept
    assert len({record["trial_id"] for record in now}) == len(now) == len(kept) + 1
