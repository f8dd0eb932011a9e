"""A study on a cluster whose nodes differ runs on one kind of them."""

from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from helpers.command import TINY_STUDY, Done, finished, ledger, mlflow_runs, run, run_inside
from ray_nodes import Cluster, RayNode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not())),
]

OURS, THEIRS = "Testware Alpha 9000", "Testware Beta 1"
"""What the head and the other node call their CPUs."""


class Mixed:
    """A cluster of a head and, on another machine, a node with another CPU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, stack: list[namespaces.Machine], cluster: Cluster) -> None:
        self.head_machine, self.other_machine = stack
        self.cluster = cluster
        self.head_machine.pretend_cpu(OURS, folder=self.folder)
        self.other_machine.pretend_cpu(THEIRS, folder=self.folder)
        self.head = self.add(self.head_machine)
        self.other = self.add(self.other_machine)

    def add(self, machine: namespaces.Machine) -> RayNode:
        ips = {"ip": machine.address, "head_ip": self.head_machine.address}
        return self.cluster.add(cpus=2, prefix=machine.prefix, **ips)

    def search(self, *arguments: str) -> Done:
        address = f"{self.head_machine.address}:{self.cluster.port}"
        command = ("search", "tiny.yaml", *arguments, "--address", address)
        return run(
            *command, folder=self.folder, prefix=self.head_machine.prefix, **self.cluster.variables
        )


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "tiny.yaml").write_text(TINY_STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        with namespaces.machines(2) as stack, Cluster(is_outside=True) as cluster:
            mixed = Mixed(folder)
            mixed.start(stack, cluster)
            yield mixed


def test_trials_run_on_the_named_kind_and_the_user_is_told_which_nodes_are_left_out(
    mixed: Mixed,
) -> None:
    pinned = f"cpu (1 threads, {THEIRS})"
    done = mixed.search("--trials", "2", "--set", f"search.resources.device_type={pinned}")
    assert done.code in (0, 1), done.err
    assert f"{pinned} (1 node)" in done.err
    assert mixed.head_machine.address in done.err and OURS in done.err
    assert [record["device"] for record in finished(mixed.folder)] == [pinned] * 2
    assert ledger(mixed.folder)[0]["device_type"] == pinned
    assert len(mlflow_runs(mixed.folder)) == 2


def test_study_does_not_go_on_where_its_device_is_not(mixed: Mixed) -> None:
    """Its pin alone tells: on this machine, alone, there are CPUs too."""
    arguments = ("search", "tiny.yaml", "--resume", "--trials", "9")
    done = run_inside(*arguments, folder=mixed.folder)
    assert done.code == 2, done.err
    assert THEIRS in done.err and "--set study=NAME" in done.err
