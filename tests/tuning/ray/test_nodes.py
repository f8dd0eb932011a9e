import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.words import Device
from tune_speed.runtime.device import describe_device, set_up_process
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.trial import Allotment
from tune_speed.tuning.ray import nodes as nodes_module
from tune_speed.tuning.ray.node_query import Answer, Node, here, on_nodes, set_up_device
from tune_speed.tuning.ray.nodes import Nodes

H200, A100 = Answer("NVIDIA H200", "2.9"), Answer("NVIDIA A100", "2.9")
GPU = ResourceConfig(cpu=1, gpu=0.5)


class Town:
    def __init__(self, **answers: Answer | str | None) -> None:
        self.answers_of = dict(answers)
        self.resources = {"CPU": 4.0, "GPU": 2.0}
        self.asked: list[str] = []
        self._waiting: list[str] = []

    def look(self) -> list[Node]:
        return [Node(name, f"10.0.0.{name}", self.resources) for name in self.answers_of]

    def submit(self, node_id: str) -> None:
        self.asked.append(node_id)
        self._waiting.append(node_id)

    def results(self, *, timeout_s: float) -> dict[str, Answer | str]:
        ready = {name: self.answers_of.get(name) for name in self._waiting}
        found = {name: answer for name, answer in ready.items() if answer is not None}
        self._waiting = [name for name in self._waiting if name not in found]
        if not found:
            time.sleep(0.01)
        return found


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ANSWER_S": 0.5, "STRAGGLERS_S": 0.1, "POLL_S": 0.05}.items():
        monkeypatch.setattr(nodes_module, name, value)


@contextmanager
def nodes_of(
    town: Town, resources: ResourceConfig, *, pin: str | None = None, is_local: bool = False
) -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes_module, "RayQueries", lambda **_: town)
        patch.setattr(nodes_module, "alive_nodes", town.look)
        with Nodes(resources, pin=pin, is_local=is_local) as nodes:
            yield nodes


@contextmanager
def settled(
    town: Town, *, pin: str | None = None, resources: ResourceConfig = GPU
) -> Iterator[Nodes]:
    with nodes_of(town, resources, pin=pin) as nodes:
        nodes.settle()
        yield nodes


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_trials_run_on_the_kind_with_most_nodes() -> None:
    with settled(Town(a=A100, b=H200, c=H200)) as nodes:
        assert nodes.device_type == "NVIDIA H200"
        assert nodes.allowed == ("b", "c")
        assert nodes.placement() == {"node_ids": ["b", "c"], "device_type": "NVIDIA H200"}
        [line] = nodes.messages()
        assert line == (
            "trials run on NVIDIA H200 (2 nodes); left out: 10.0.0.a, which has NVIDIA A100"
        )
        assert nodes.messages() == ()


def test_equally_many_nodes_are_chosen_by_name_so_that_it_is_not_chance() -> None:
    for town in (Town(a=H200, b=A100), Town(a=A100, b=H200)):
        with settled(town) as nodes:
            assert nodes.device_type == "NVIDIA A100"


def test_named_type_is_taken_although_others_have_more_nodes() -> None:
    asked_for = ResourceConfig(cpu=1, gpu=1, device_type="NVIDIA A100")
    with settled(Town(a=A100, b=H200, c=H200), resources=asked_for) as nodes:
        assert nodes.allowed == ("a",)


def test_type_that_no_node_has_is_refused_with_those_there() -> None:
    asked_for = ResourceConfig(cpu=1, gpu=1, device_type="NVIDIA A10")
    with (
        pytest.raises(ConfigError, match=r"NVIDIA A10 and there is NVIDIA A100 \(1 node\)"),
        settled(Town(a=A100), resources=asked_for),
    ):
        pass


def test_study_stays_on_the_device_of_its_first_trials() -> None:
    with settled(Town(a=A100, b=H200, c=H200), pin="NVIDIA A100") as nodes:
        assert nodes.allowed == ("a",)
    with (
        pytest.raises(ConfigError, match=r"must stay on the type of device .* NVIDIA A100"),
        settled(Town(b=H200), pin="NVIDIA A100"),
    ):
        pass
    other = ResourceConfig(cpu=1, gpu=1, device_type="NVIDIA H200")
    with (
        pytest.raises(ConfigError, match=r"search\.resources\.device_type=NVIDIA H200"),
        settled(Town(a=A100, b=H200), pin="NVIDIA A100", resources=other),
    ):
        pass


def test_node_that_joins_is_asked_and_used_if_it_is_alike() -> None:
    town = Town(a=H200)
    with settled(town) as nodes:
        nodes.messages()
        town.answers_of |= {"b": A100, "c": H200}
        wait_for(lambda: len(town.asked) == 3 and len(nodes.allowed) == 2)
        assert nodes.allowed == ("a", "c")
        lines: list[str] = []
        wait_for(lambda: lines.extend(nodes.messages()) or len(lines) == 2)
        assert sorted(lines) == [
            "a node joined, 10.0.0.b: left out, which has NVIDIA A100",
            "a node joined, 10.0.0.c: trials run there too",
        ]


def test_node_that_is_lost_stays_on_the_list_so_that_processes_can_be_kept() -> None:
    town = Town(a=H200, b=H200)
    with settled(town) as nodes:
        del town.answers_of["b"]
        town.answers_of["c"] = H200
        wait_for(lambda: len(nodes.allowed) > 2)
        assert nodes.allowed == ("a", "b", "c")


def test_slow_node_is_not_waited_for_and_joins_when_it_answers() -> None:
    town = Town(a=H200, b=None)
    with settled(town) as nodes:
        assert nodes.allowed == ("a",)
        assert "left out: 10.0.0.b, which has not answered yet" in nodes.messages()[0]
        town.answers_of["b"] = H200
        wait_for(lambda: nodes.allowed == ("a", "b"))


def test_cluster_without_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "ANSWER_S", 0.1)
    with (
        pytest.raises(ServiceError, match=r"10\.0\.0\.a, as it has no such device: torch sees 0"),
        settled(Town(a="it has no such device: torch sees 0", b=None)),
    ):
        pass


def test_node_too_small_for_a_trial_is_not_asked() -> None:
    town = Town(a=H200)
    town.resources = {"CPU": 1.0, "GPU": 2.0}
    with (
        pytest.raises(ServiceError, match="it has 1 CPU and a trial needs 2"),
        settled(town, resources=ResourceConfig(cpu=2, gpu=1)),
    ):
        pass
    assert town.asked == []


def test_this_machine_alone_is_known_without_a_question() -> None:
    town = Town(a=H200)
    for resources in (ResourceConfig(cpu=2), GPU):
        with nodes_of(town, resources, is_local=True) as nodes:
            nodes.settle()
            assert nodes.allowed == () and nodes.messages() == ()
            assert (nodes.device_type or "").startswith("" if resources.gpu else "cpu (2 threads, ")
    assert town.asked == []


def test_gpu_of_this_machine_is_asked_for_its_name_where_a_study_has_one() -> None:
    town = Town(a=H200)
    with (
        nodes_of(town, GPU, pin="NVIDIA A100", is_local=True) as nodes,
        pytest.raises(ConfigError, match="here is only NVIDIA H200"),
    ):
        nodes.settle()
    assert town.asked == ["a"]


def test_several_devices_are_of_the_type_of_one() -> None:
    two, one = (Device.model_validate(name) for name in ("2 x NVIDIA H200", "NVIDIA H200"))
    assert (two.one, two.count) == (one, 2)


def test_selector_names_nodes_or_leaves_the_choice() -> None:
    assert on_nodes(["a", "b"]) == {"ray.io/node-id": "in(a,b)"}
    assert on_nodes([]) == {}


def test_user_is_told_where_the_folder_of_the_study_is_not_seen() -> None:
    with settled(Town(a=H200, b=H200._replace(sees_study=False))) as nodes:
        _, line = nodes.messages()
        assert line.startswith("the study's folder is not visible on 10.0.0.b: ")


CPU = Allotment(device="cpu", cpu_threads=1)


def test_cpu_is_named_without_torch_as_records_name_it() -> None:
    set_up_process(torch.device("cpu"), cpu_threads=1)
    answer = here(cpu_threads=1)
    assert answer.device == describe_device(torch.device("cpu"))
    assert answer.torch == torch.__version__.partition("+")[0]


def test_trial_on_the_device_of_its_study_goes_on() -> None:
    set_up_device(CPU, here(cpu_threads=1).device)
    set_up_device(CPU, None)


def test_trial_on_another_device_does_not_begin() -> None:
    with pytest.raises(RuntimeError, match=r"must run on NVIDIA H200, but this node, .*, has cpu"):
        set_up_device(CPU, "NVIDIA H200")
