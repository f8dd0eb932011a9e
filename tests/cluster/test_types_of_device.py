"""One study over two types of device: each trial runs on the one that it chose, money compares."""

from collections.abc import Iterator
from pathlib import Path

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

    def search(self, *arguments: str, study: str = "tiny", prices: tuple[float, float]) -> Done:
        """Runs a search that begins with the same recipe on either type."""
        types = list(map(named, (NEW, OLD)))
        recipe = {"batch_size": 50, "epochs": 8, "optimizer.sgd.lr": 0.1}
        own = {
            "trials": 4,
            "concurrent": 2,
            "points_to_evaluate": [{"device_type": each, **recipe} for each in types],
            "resources": {
                "device_types": types,
                "price_per_hour": dict(zip(types, prices, strict=True)),
            },
        }
        tree = {**yaml.safe_load(TINY_STUDY), "study": study, "search": own}
        text = yaml.safe_dump({**tree, "goal": {"minimise": "cost"}})
        (self.folder / f"{study}.yaml").write_text(text)
        return self.run("search", f"{study}.yaml", *arguments, *self.address)

    @property
    def address(self) -> tuple[str, str]:
        return "--address", f"{self.machines[0].address}:{self.cluster.port}"

    def run(self, *arguments: str) -> Done:
        prefix = self.machines[0].prefix
        return run(*arguments, folder=self.folder, prefix=prefix, **self.cluster.variables)


@pytest.fixture(scope="module")
def two_types(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Iterator[TwoTypes]:
    folder = tmp_path_factory.mktemp("types")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        with namespaces.machines(2) as machines, Cluster(is_outside=True) as cluster:
            yield TwoTypes(folder, machines, cluster)


OLD_IS_CHEAP, NEW_IS_CHEAP = (3.6, 0.36), (3.6, 3.0)
"""Prices of an hour of either type."""


def test_each_trial_runs_on_the_type_that_it_chose_to_the_certified_cheapest(
    two_types: TwoTypes,
) -> None:
    done = two_types.search(prices=OLD_IS_CHEAP)
    assert done.code == 0, done.err
    assert f"trials run on {named(NEW)} (1 node) or {named(OLD)} (1 node)" in done.err
    first = finished(two_types.folder)
    assert [r["device"] for r in first] == [r["params"]["device_type"] for r in first]
    assert all("device_type" not in r["recipe"] for r in first)
    assert ledger(two_types.folder)[0]["device_type"] is None
    # The same recipe: the same steps, each timed on its own type. A busy machine may end one early.
    same = {r["device"]: r["runs"][0] for r in first if r["trial_id"] in ("t0000", "t0001")}
    of_old, of_new = ([e["step"] for e in same[named(cpu)]["evaluations"]] for cpu in (OLD, NEW))
    both = min(len(of_old), len(of_new))
    assert of_old[:both] == of_new[:both] and both > 1
    new_s, old_s = (same[named(cpu)]["step_times"][0]["step_s"] for cpu in (NEW, OLD))
    assert old_s > 1.5 * new_s

    done = two_types.search("--trials", "6", "--resume", prices=OLD_IS_CHEAP)
    assert done.code == 0, done.err
    records = finished(two_types.folder)
    assert records[:4] == first and len(records) == 6

    (board,) = two_types.run("leaderboard", "--study", "tiny", "--json").json
    assert board["order"] == "cost"
    assert board["device"] == f"{named(NEW)}, {named(OLD)}"
    for row in board["rows"]:
        price = dict(zip((NEW, OLD), OLD_IS_CHEAP, strict=True))[row["device_type"][16:-1]]
        assert row["expected_cost"] == pytest.approx(row["expected_s"] * price / 3600)
    costs = [row["expected_cost"] for row in board["rows"]]
    assert costs == sorted(costs)
    assert board["rows"][0]["device_type"] == named(OLD)
    done = two_types.run("report", "tiny")
    assert done.code == 0, done.err

    few = ("--top", "1", "--seeds", "2", "--final", "0")
    done = two_types.run("certify", "tiny", *few, *two_types.address)
    assert done.code in (0, 1), done.err  # 1: others disturbed it.
    boards = two_types.run("leaderboard", "--study", "tiny", "--json").json
    certified = [row for each in boards if each["kind"] == "certified" for row in each["rows"]]
    assert [row["device_type"] for row in certified] == [named(OLD)]


def test_with_other_prices_the_other_type_is_cheapest(two_types: TwoTypes) -> None:
    done = two_types.search(study="dear", prices=NEW_IS_CHEAP)
    assert done.code == 0, done.err
    (board,) = two_types.run("leaderboard", "--study", "dear", "--json").json
    assert board["rows"][0]["device_type"] == named(NEW)
    ran = {record["device"] for record in finished(two_types.folder, "dear")}
    assert ran == {named(NEW), named(OLD)}


def test_a_type_that_is_not_there_is_refused(two_types: TwoTypes) -> None:
    gone = named("Testware Gamma")
    types = f"search.resources.device_types=['{named(NEW)}', '{gone}']"
    left_out = "search.points_to_evaluate=[]"
    done = two_types.search("--set", types, "--set", left_out, study="gone", prices=OLD_IS_CHEAP)
    assert done.code == 2, done.err
    assert f"device_types must be a device of the cluster, but got {gone}" in done.err
