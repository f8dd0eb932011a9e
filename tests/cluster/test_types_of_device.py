"""One study over two types of device: each trial runs on the one that it chose, money compares."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import namespaces
import pytest
import yaml
from command import TINY_STUDY, Done, finished, ledger, run
from ray_nodes import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not())),
]

NEW, OLD = "Testware Alpha 9000", "Testware Beta 1"
"""What the head and the other node call their CPUs."""
OLD_CPU = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
"""Variables with which a CPU computes as one of 2008 would, without AVX: slower by itself."""


def named(cpu: str) -> str:
    return f"cpu (1 threads, {cpu})"


class TwoTypes:
    """A cluster of two machines, and the study that searches over both."""

    def __init__(self, folder: Path, machines: list[namespaces.Machine], cluster: Cluster) -> None:
        self.folder, self.machines, self.cluster = folder, machines, cluster
        for machine, cpu in zip(machines, (NEW, OLD), strict=True):
            machine.pretend_cpu(cpu, folder=folder)
        for machine, variables in zip(machines, ({}, OLD_CPU), strict=True):
            ips = {"ip": machine.address, "head_ip": machines[0].address}
            cluster.add(cpus=1, prefix=machine.prefix, **ips, **variables)

    def write(self, *, prices: tuple[float, float]) -> None:
        tree = yaml.safe_load(TINY_STUDY)
        types = list(map(named, (NEW, OLD)))
        resources = {"device_types": types, "price_per_hour": dict(zip(types, prices, strict=True))}
        own = {"trials": 8, "concurrent": 2, "seed": 1, "resources": resources}
        text = yaml.safe_dump({**tree, "goal": {"minimise": "cost"}, "search": own})
        (self.folder / "tiny.yaml").write_text(text)

    def run(self, *arguments: str) -> Done:
        prefix = self.machines[0].prefix
        return run(*arguments, folder=self.folder, prefix=prefix, **self.cluster.variables)

    def search(self, *arguments: str) -> Done:
        address = f"{self.machines[0].address}:{self.cluster.port}"
        return self.run("search", "tiny.yaml", *arguments, "--address", address)


@pytest.fixture(scope="module")
def two_types(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Iterator[TwoTypes]:
    folder = tmp_path_factory.mktemp("types")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        with namespaces.machines(2) as machines, Cluster(is_outside=True) as cluster:
            yield TwoTypes(folder, machines, cluster)


def step_s(records: list[dict[str, Any]], cpu: str) -> dict[int, float]:
    """Returns the shortest isolated step by batch size on a type of device [s]."""
    found: dict[int, float] = {}
    for each in records:
        if each["device"] == named(cpu) and each["runs"][0]["step_times"]:
            size, known = each["params"]["batch_size"], each["runs"][0]["step_times"][0]["step_s"]
            found[size] = min(known, found.get(size, known))
    return found


def test_each_trial_runs_on_the_type_that_it_chose_and_money_ranks_them(
    two_types: TwoTypes,
) -> None:
    two_types.write(prices=(3.6, 0.36))
    done = two_types.search("--trials", "6")
    assert done.code in (0, 1), done.err
    assert f"trials run on {named(NEW)} (1 node) or {named(OLD)} (1 node)" in done.err
    first = finished(two_types.folder)
    assert [r["device"] for r in first] == [r["params"]["device_type"] for r in first]
    assert {r["device"] for r in first[:2]} == {named(NEW), named(OLD)}
    assert all("device_type" not in r["recipe"] for r in first)
    assert ledger(two_types.folder)[0]["device_type"] is None

    done = two_types.search("--trials", "8", "--resume")
    assert done.code in (0, 1), done.err
    records = finished(two_types.folder)
    assert records[:6] == first and len(records) == 8
    new, old = step_s(records, NEW), step_s(records, OLD)
    shared = new.keys() & old.keys()
    assert shared and all(old[size] > 1.5 * new[size] for size in shared), (new, old)

    (board,) = two_types.run("leaderboard", "--study", "tiny", "--json").json
    assert board["order"] == "cost"
    assert board["device"] == f"{named(NEW)}, {named(OLD)}"
    for row in board["rows"]:
        price = {NEW: 3.6, OLD: 0.36}[NEW if NEW in row["device_type"] else OLD]
        assert row["expected_cost"] == pytest.approx(row["expected_s"] * price / 3600)
    costs = [row["expected_cost"] for row in board["rows"]]
    assert costs == sorted(costs)
    done = two_types.run("report", "tiny")
    assert done.code == 0, done.err


def test_a_type_that_is_not_there_is_refused(two_types: TwoTypes) -> None:
    two_types.write(prices=(3.6, 0.36))
    text = (two_types.folder / "tiny.yaml").read_text().replace(OLD, "Testware Gamma")
    (two_types.folder / "tiny.yaml").write_text(text)
    done = two_types.search("--set", "study=other")
    assert done.code == 2, done.err
    assert f"device_types must be a device of the cluster, but got {named('Testware Gamma')}" in (
        done.err
    )
