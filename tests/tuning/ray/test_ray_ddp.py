"""A trial on two devices of one of a cluster's nodes, whose own process is killed.

`test_devices_command.py` has whole searches, `test_multi_gpu_parts.py` what ranks may say.
"""

import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import psutil
import pytest
import ray
from processes import command_of
from ray._private.state import available_resources_per_node
from ray.cluster_utils import Cluster
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from test_trial_process import make_spec
from trial_config import config_of

from tune_speed.study.settings import ResourceConfig
from tune_speed.tuning.ray.cluster import quiet_ray
from tune_speed.tuning.ray.compat import without_bystanders
from tune_speed.tuning.ray.placement_groups import PlacementGroups
from tune_speed.tuning.ray.trial_process import TrialProcess

pytestmark = pytest.mark.slow

CPUS = 2
"""Of each of the two nodes."""
FREE_S = 30.0


class Held(NamedTuple):
    """CPUs that are not free, by node."""

    before: Counter[str]
    """While the trial's own process lives."""
    after: Counter[str]
    """After that was killed, and its devices given back."""
    node_id: str
    """Where the trial was to run."""
    cleaners: int
    """Actors of Ray Train that ask for a dashboard."""


def find_held(folder: Any) -> Held:
    quiet_ray()
    own = {"num_cpus": CPUS, "dashboard_agent_listen_port": 0}
    with without_bystanders():
        nodes = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **own})
        nodes.add_node(**own)
    try:
        ray.init(address=nodes.address, log_to_driver=False, logging_level="CRITICAL")
        there = other_than_rays_choice()
        holdings = PlacementGroups()
        config = config_of(
            make_spec("t0002", epochs=500, devices=2),
            folder,
            devices=2,
            resources=ResourceConfig(cpu=1).model_dump_json(),
            holdings=holdings.name,
            node_ids=[there],
        )
        keeper = ray.remote(num_cpus=0)(TrialProcess).remote(config)
        while "record" not in ray.get(keeper.step.remote()):  # Signs of life, while ranks start.
            pass
        before, commands = held(), [command_of(process) for process in psutil.process_iter()]
        cleaners = sum("PlacementGroupCleaner" in command for command in commands)
        ray.kill(keeper)
        holdings.release("t0002")
        deadline = time.monotonic() + FREE_S
        while (after := held()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return Held(before, after, there, cleaners)
    finally:
        ray.shutdown()
        nodes.shutdown()


def other_than_rays_choice() -> str:
    """Returns the node that Ray does not take for two CPUs if it has the choice."""
    group = placement_group([{"CPU": 1}] * 2)
    assert group.wait(60)
    chosen = placement_group_table(group)["bundles_to_node_id"][0]
    remove_placement_group(group)
    (other,) = {node["NodeID"] for node in ray.nodes()} - {chosen}
    return str(other)


def held() -> Counter[str]:
    free = available_resources_per_node()
    return +Counter({node: CPUS - int(each.get("CPU", 0.0)) for node, each in free.items()})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, session_cache: Any) -> Held:
    """In a process of its own: one that was Ray's driver ends with whatever Ray stops later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(find_held, tmp_path_factory.mktemp("held")).result(timeout=500)


def test_ranks_are_on_the_nodes_where_trials_may_run(found: Held) -> None:
    assert found.before == {found.node_id: 2}


def test_nothing_asks_for_a_dashboard_where_there_is_none(found: Held) -> None:
    assert found.cleaners == 0


def test_trial_whose_own_process_dies_holds_nothing_after_its_release(found: Held) -> None:
    assert not found.after
