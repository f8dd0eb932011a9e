import pytest

from tune_speed.study.settings import ResourceConfig
from tune_speed.tuning.ray.concurrency import MOST_ON_A_GPU, room_for
from tune_speed.tuning.ray.node_query import Node

GIB = 2**30


def node(name: str = "a", *, cpus: float = 2, gpus: float = 0, memory_gib: float = 8) -> Node:
    return Node(name, name, {"CPU": cpus, "GPU": gpus, "memory": memory_gib * GIB})


@pytest.mark.parametrize(
    ("cpu", "memory_gib", "here"),
    [(1, None, 2), (2, None, 1), (0.5, None, 4), (0.6, None, 3), (3, None, 0), (0.5, 3, 2)],
)
def test_cores_and_memory_bound_trials(cpu: float, memory_gib: float | None, here: int) -> None:
    assert room_for(ResourceConfig(cpu=cpu, memory_gib=memory_gib), [node()]).here == here


@pytest.mark.parametrize(
    ("gpu", "cpu", "here"),
    [(1, 1, 8), (1, 4, 2), (1, 16, 1), (0.5, 1, 2), (0.25, 1, 4), (1, 0.1, MOST_ON_A_GPU)],
)
def test_whole_gpu_is_shared_by_its_part_of_the_cores(gpu: float, cpu: float, here: int) -> None:
    room = room_for(ResourceConfig(cpu=cpu, gpu=gpu), [node(cpus=16, gpus=2)])
    assert room.here == here


def test_nodes_without_room_are_left_out_and_the_roomiest_is_measured() -> None:
    small, large, none = node("a", cpus=2), node("b", cpus=8), node("c", cpus=1)
    room = room_for(ResourceConfig(cpu=2), [small, large, none])
    assert [each.node_id for each in room.nodes] == ["b", "a"] and room.here == 4
    no_gpu = room_for(ResourceConfig(cpu=1, gpu=1), [node("a"), node("b", cpus=4, gpus=1)])
    assert [each.node_id for each in no_gpu.nodes] == ["b"]
    assert room_for(ResourceConfig(cpu=64), [small]).here == 0


def test_what_is_best_on_one_node_holds_for_all_by_their_cores() -> None:
    room = room_for(ResourceConfig(cpu=1), [node("a", cpus=8), node("b", cpus=4)])
    assert room.everywhere(6) == 6 + 3
    assert room.everywhere(8) == 8 + 4
    assert room.everywhere(1) == 1 + 1


def test_what_is_best_on_one_gpu_holds_for_all() -> None:
    nodes = [node("a", cpus=8, gpus=2), node("b", cpus=3, gpus=1)]
    assert room_for(ResourceConfig(cpu=1, gpu=1), nodes).everywhere(4) == 8 + 3


def test_trials_of_several_gpus_share_none() -> None:
    room = room_for(ResourceConfig(cpu=1, gpu=2), [node(cpus=16, gpus=5)])
    assert room.here == 1 and room.everywhere(1) == 2
