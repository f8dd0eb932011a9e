from collections.abc import Sequence

import pytest

from tune_speed.study.settings import ResourceConfig
from tune_speed.tuning.ray.concurrency import (
    LONGEST_WINDOW_S,
    MOST_ON_A_GPU,
    WINDOW_S,
    Packing,
    best,
    measure,
    room_for,
    sizes,
)
from tune_speed.tuning.ray.node_query import Node


class Cores:
    """Processes on so many cores: k of them have min(1, cores / k) of one each."""

    def __init__(
        self, cores: float, *, most: int = 99, memory: float = 0.01, slower: float = 1.0
    ) -> None:
        self.cores, self.most, self.memory, self.slower = cores, most, memory, slower
        self.speed, self.windows_s, self.tried = 100.0, list[float](), list[int]()
        self.seconds_of_a_step = 0.01

    def grow(self, count: int) -> bool:
        return count <= self.most

    def step_s(self) -> float:
        return self.seconds_of_a_step

    def rates(self, count: int, *, window_s: float) -> Sequence[float]:
        self.windows_s.append(window_s)
        self.tried.append(count)
        self.speed *= self.slower
        return [self.speed * min(1.0, self.cores / count)] * count

    def memory_frac(self) -> float:
        return self.memory


@pytest.mark.parametrize(
    ("most", "tried"),
    [(1, [1]), (2, [1, 2]), (5, [1, 2, 3, 4, 5]), (16, [1, 2, 3, 4, 6, 8, 12, 16])],
)
def test_sizes_grow_by_a_half_at_most_and_end_with_the_most(most: int, tried: list[int]) -> None:
    assert sizes(most) == tried


@pytest.mark.parametrize("cores", [1, 2, 4, 6])
def test_on_cores_that_are_all_alike_as_many_are_chosen_as_there_are(cores: int) -> None:
    gains, note = measure(Cores(cores), most=8)
    assert best(gains) == cores and note == ""
    assert gains == {k: pytest.approx(min(k, cores)) for k in gains}


def test_trials_that_only_take_turns_are_best_one_at_a_time() -> None:
    assert best({1: 1.0, 2: 1.02, 3: 1.029}) == 1


def test_a_tie_goes_to_fewer_as_their_proposals_know_more() -> None:
    assert best({1: 1.0, 2: 1.93, 3: 1.91}) == 2
    assert best({1: 1.0, 2: 1.91, 3: 1.93}) == 2
    assert best({1: 1.0, 2: 1.7, 3: 1.93}) == 3


def test_it_ends_after_two_sizes_that_are_worse_than_the_best() -> None:
    class Crowded(Cores):
        def rates(self, count: int, *, window_s: float) -> Sequence[float]:
            return [rate / count for rate in super().rates(count, window_s=window_s)]

    company = Crowded(99)
    gains, _ = measure(company, most=16)
    assert list(gains) == [1, 2, 3, 4, 6, 8, 12, 16]  # g = 1: as good as one, never worse.
    crowded = Crowded(2)
    gains, _ = measure(crowded, most=16)
    assert list(gains) == [1, 2, 3, 4] and max(crowded.tried) == 4


def test_a_machine_that_slows_down_meanwhile_changes_gains_by_one_step_of_it() -> None:
    gains, _ = measure(Cores(4, slower=0.98), most=8)
    assert gains == {k: pytest.approx(min(k, 4) * (0.98 if k > 1 else 1.0)) for k in gains}


def test_no_more_are_tried_than_memory_has_room_for() -> None:
    gains, note = measure(Cores(8, memory=0.25), most=8)
    assert list(gains) == [1, 2, 3] and note == "4 would fill the memory"


def test_processes_that_do_not_start_end_it_with_what_is_known() -> None:
    gains, note = measure(Cores(8, most=2), most=8)
    assert list(gains) == [1, 2] and note == "3 did not start"


@pytest.mark.parametrize(
    ("step_s", "window_s"), [(0.01, WINDOW_S), (1.0, 3.0), (60.0, LONGEST_WINDOW_S)]
)
def test_windows_hold_several_steps_within_bounds(step_s: float, window_s: float) -> None:
    company = Cores(2)
    company.seconds_of_a_step = step_s
    measure(company, most=2)
    assert set(company.windows_s) == {window_s}


def test_line_says_what_was_chosen_and_what_the_others_were_worth() -> None:
    packing = Packing(concurrent=2, at_once=2, gains={1: 1.0, 2: 1.93, 3: 1.91})
    assert packing.line() == "2 at a time: 1.93 × the trials an hour of one; 3: 1.91 ×"
    alone = Packing(concurrent=1, at_once=1, gains={1: 1.0, 2: 0.98}, note="the node was busy")
    assert alone.line() == "1 at a time; 2: 0.98 ×; the node was busy"
    many = Packing(
        concurrent=8, at_once=4, gains={1: 1.0, 4: 2.5}, gpu=0.25, sharing="time slicing"
    )
    assert many.line() == (
        "8 at a time, 4 on each GPU: 2.50 × the trials an hour of one; time slicing"
    )


def test_packing_comes_back_from_its_file() -> None:
    packing = Packing(concurrent=2, at_once=2, gains={1: 1.0, 2: 1.9}, asked={"there": "1 node"})
    assert Packing.model_validate_json(packing.model_dump_json()) == packing


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
