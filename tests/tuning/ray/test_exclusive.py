"""A whole device for one run at a time, with stand-ins for Ray's actor and its answers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from test_trial_process_here import make_spec, standing

from tune_speed.core.errors import ConfigError, DeviceFailed, ServiceError
from tune_speed.core.records import Status
from tune_speed.tuning.ray import cluster, exclusive
from tune_speed.tuning.ray.exclusive import ExclusiveDevice, Stopped

SPEC = make_spec("t0000")
RECORD = standing(SPEC).model_dump_json()
LATE = GetTimeoutError("late")


class Ray:
    def __init__(self, *answers: Any) -> None:
        self.answers, self.calls, self.killed = list(answers), list[str](), 0
        self.options: dict[str, Any] = {}

    def remote(self, kind: type) -> Any:
        def start(**options: Any) -> Any:
            self.options = options
            return SimpleNamespace(remote=lambda *arguments: _Actor(self))

        return SimpleNamespace(options=start)

    def get(self, reference: Any, *, timeout: float) -> Any:
        assert timeout == exclusive.POLL_S
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def kill(self, actor: Any) -> None:
        self.killed += 1


class _Actor:
    def __init__(self, ray: Ray) -> None:
        self._ray = ray

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._ray.calls.append(method))


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ray]:
    def answer(*answers: Any) -> Ray:
        ray = Ray(*answers)
        monkeypatch.setattr(exclusive, "ray", ray)
        monkeypatch.setattr(cluster, "node_cpus", lambda node_ids: 6.0)
        return ray

    return answer


def make_device(lines: list[str] | None = None, **changes: Any) -> ExclusiveDevice:
    settings: dict[str, Any] = {
        "gpus": 0,
        "cpu_threads": 2,
        "on_line": (lines if lines is not None else []).append,
        "is_stopped": lambda: False,
    }
    return ExclusiveDevice(**{**settings, **changes})


@pytest.mark.parametrize(
    ("gpus", "cpus"),
    [(0, 6.0), (1, 2.0), (3, 6.0)],
)
def test_whole_node_is_reserved_or_whole_gpus_with_their_cores(
    answering: Callable[..., Ray], gpus: int, cpus: float
) -> None:
    ray = answering(True, RECORD, RECORD)
    exclusively = make_device(gpus=gpus)
    assert exclusively.run(SPEC) == exclusively.run(SPEC) == standing(SPEC)
    assert (ray.options["num_cpus"], ray.options["num_gpus"]) == (cpus, gpus)
    # Reserved once for all runs, and released at the end.
    assert ray.calls == ["ready", "run", "run"] and ray.killed == 0
    exclusively.close()
    exclusively.close()
    assert ray.killed == 1


@pytest.mark.parametrize("death", [RayActorError(), DeviceFailed("the GPU fell off")])
def test_dead_run_is_run_once_more(answering: Callable[..., Ray], death: Exception) -> None:
    ray = answering(True, death, True, RECORD)
    assert make_device().run(SPEC) == standing(SPEC)
    assert ray.calls == ["ready", "run"] * 2 and ray.killed == 1
    ray = answering(True, death, True, death)
    record = make_device().run(SPEC)
    assert record.status == record.runs[0].status == Status.FAILED and ray.killed == 2
    said = f"its process died: {death}"
    assert str(record.stop_reason) == said.splitlines()[0] and record.runs[0].traceback == said
    assert record.trial_id == "t0000" and record.runs[0].seed == SPEC.seed


def test_errors_for_the_user_are_raised_as_they_were(answering: Callable[..., Ray]) -> None:
    meant = RayTaskError("run", "traceback", ConfigError("no such thing"))
    answering(True, meant)
    with pytest.raises(ConfigError, match="no such thing"):
        make_device().run(SPEC)
    answering(True, RayTaskError("run", "traceback", ZeroDivisionError("a bug")))
    with pytest.raises(RayTaskError):
        make_device().run(SPEC)


def test_device_that_others_hold_is_waited_for_aloud(answering: Callable[..., Ray]) -> None:
    lines: list[str] = []
    ray = answering(*[LATE] * 61, True, *[LATE] * 40, RECORD)
    assert make_device(lines).run(SPEC) == standing(SPEC)
    # A run itself may take as long as it takes.
    waiting = "waiting for the whole device to become free"
    assert lines == [f"{waiting} (30 s)", f"{waiting} (60 s)"] and ray.killed == 0


def test_after_half_an_hour_it_is_given_up(answering: Callable[..., Ray]) -> None:
    ray = answering(*[LATE] * 1800, True)
    with pytest.raises(ServiceError, match=r"free within 1800 s .*'num_cpus': 6\.0"):
        make_device().run(SPEC)
    assert ray.killed == 1 and ray.answers == [True]


def test_who_stops_it_waits_no_more(answering: Callable[..., Ray]) -> None:
    looks = iter([False, False, True])
    ray = answering(LATE, LATE, True)
    with pytest.raises(Stopped):
        make_device(is_stopped=lambda: next(looks)).run(SPEC)
    assert ray.answers == [True] and ray.killed == 1


def test_description_is_asked_of_the_process_itself(answering: Callable[..., Ray]) -> None:
    ray = answering(True, '{"model": "there"}')
    assert make_device().describe(SPEC) == '{"model": "there"}'
    assert ray.calls == ["ready", "describe"]
