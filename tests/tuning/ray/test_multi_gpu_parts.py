"""The parts of a trial on several devices, without Ray Train: `test_ray_ddp.py` has the whole.

Calls of actors are answered by their own classes, here and at once.
"""

import asyncio
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import ray.train.torch
from ray.exceptions import GetTimeoutError, RayError
from test_trial_process_here import make_spec

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.distributed import supervisor
from tune_speed.training.distributed.supervisor import Ended, RanksDied, Standing
from tune_speed.training.objective import finish
from tune_speed.training.ranks import Ranks
from tune_speed.tuning.ray import multi_gpu, placement_groups
from tune_speed.tuning.ray.multi_gpu import (
    RayCrew,
    TrialHung,
    _Channel,
    _Mailbox,
    _rank,
    run_on_cluster,
)
from tune_speed.tuning.ray.placement_groups import PlacementGroups, note_group

SOON_S = 60.0


class Here:
    """An actor in this process: a call is done when its answer is asked for."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *given: lambda: getattr(self.actor, method)(*given))


class Ray:
    """Answers calls by `Here`, and lists what is killed."""

    def __init__(self) -> None:
        self.killed: list[Any] = []
        self.named: dict[str, Here] = {}
        self.error: Exception | None = None
        self.loop = asyncio.new_event_loop()

    def remote(self, kind: type) -> Any:
        def options(*, name: str = "", **_: Any) -> Any:
            made = Here(kind())
            self.named[name] = made
            return SimpleNamespace(remote=lambda: made)

        return SimpleNamespace(options=options)

    def get(self, call: Callable[[], Any], *, timeout: float | None = None) -> Any:
        if self.error is not None:
            raise self.error
        found = call()
        return self.loop.run_until_complete(found) if inspect.isawaitable(found) else found

    def get_actor(self, name: str) -> Here:
        return self.named[name]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(current_actor="this worker")

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    stand_in = Ray()
    for module in (multi_gpu, placement_groups):
        monkeypatch.setattr(module, "ray", stand_in)
    yield stand_in
    stand_in.loop.close()


class Trainer:
    """In place of Ray Train's: fits until it is let go, or fails."""

    made: ClassVar[list["Trainer"]] = []

    def __init__(self, loop: Any, *, train_loop_config: dict[str, Any], **settings: Any) -> None:
        self.loop, self.config, self.settings = loop, train_loop_config, settings
        self.gate, self.error = threading.Event(), None
        Trainer.made.append(self)

    def fit(self) -> None:
        assert self.gate.wait(SOON_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def crew(
    answered: Ray, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[RayCrew, Trainer]]]:
    monkeypatch.setattr(ray.train.torch, "TorchTrainer", Trainer)
    monkeypatch.setattr(multi_gpu, "without_group_cleaner", lambda: None)
    monkeypatch.setattr(supervisor, "GRACE_S", 0.0)
    monkeypatch.setattr(multi_gpu, "LEAVE_S", SOON_S)
    Trainer.made.clear()
    crews: list[RayCrew] = []

    def launch(*, gpu: float = 1.0, node_ids: tuple[str, ...] = ()) -> tuple[RayCrew, Trainer]:
        spec = make_spec("t0000")
        spec = spec.model_copy(update={"recipe": spec.recipe.model_copy(update={"devices": 2})})
        options = {"holdings": "list", "hang_after_s": 9.0}
        resources = ResourceConfig(cpu=3.0, gpu=gpu)
        crews.append(RayCrew(spec, resources=resources, node_ids=node_ids, options=options))
        return crews[-1], Trainer.made[-1]

    yield launch
    for made, trainer in zip(crews, Trainer.made, strict=True):
        trainer.gate.set()
        made._fitting.join(SOON_S)
        made._folder.close()


def let_go(made: RayCrew, trainer: Trainer, error: Exception | None = None) -> None:
    trainer.error = error
    trainer.gate.set()
    made._fitting.join(SOON_S)


@pytest.mark.parametrize("gpu", [0.0, 1.0])
def test_each_rank_is_a_worker_with_the_resources_of_one_device(
    crew: Callable[..., Any], gpu: float
) -> None:
    _, trainer = crew(gpu=gpu, node_ids=("n1",))
    scaling = trainer.settings["scaling_config"]
    assert (scaling.num_workers, scaling.use_gpu) == (2, gpu > 0)
    assert scaling.resources_per_worker == ResourceConfig(cpu=3.0, gpu=gpu).bundle()
    assert scaling.label_selector
    assert (trainer.config["holdings"], trainer.config["hang_after_s"]) == ("list", 9.0)
    assert trainer.loop is _rank
    failure = trainer.settings["run_config"].failure_config
    # A rank that fails ends the trial; devices are waited for an hour.
    assert (failure.max_failures, failure.controller_failure_limit) == (0, 60)


def test_ranks_are_heard_in_their_order_and_answered(crew: Callable[..., Any]) -> None:
    made, trainer = crew()
    mailbox = made._mailbox.actor
    for said in (Standing("{}"), Ended(1, "{}"), Ended(0, "{}")):
        mailbox._said.put_nowait(said)
    assert made.receive(timeout_s=0.0) == Standing("{}")
    made.answer("stopped at 3 s")
    assert mailbox._answers.get_nowait() == "stopped at 3 s"
    assert made.receive(timeout_s=0.0) == Ended(1, "{}")
    assert made.receive(timeout_s=0.001) == Ended(0, "{}")
    assert made.receive(timeout_s=0.001) is None
    # All have ended: that Ray Train ends too is no death.
    let_go(made, trainer)
    assert made.receive(timeout_s=SOON_S) is None


def test_end_of_ray_train_before_the_ranks_is_their_death(crew: Callable[..., Any]) -> None:
    made, trainer = crew()
    made._mailbox.actor._said.put_nowait(Ended(1, "{}"))
    let_go(made, trainer, RuntimeError("a worker died"))
    # What was said before it is heard.
    assert made.receive(timeout_s=SOON_S) == Ended(1, "{}")
    with pytest.raises(RanksDied, match="Ray Train ended: a worker died"):
        made.receive(timeout_s=SOON_S)


class HangingTrainer(Trainer):
    """One whose first rank says at once that it hangs, and whose ranks are soon killed."""

    def __init__(self, loop: Any, **settings: Any) -> None:
        super().__init__(loop, **settings)
        error = TrialHung("no step for 9 s\nThread training: here")
        said = Ended(rank=0, error=pickle.loads(pickle.dumps(error)))
        self.config["mailbox"].actor._said.put_nowait(said)
        threading.Timer(0.05, self.gate.set).start()


def test_trial_whose_ranks_hang_has_failed_with_their_stacks(
    crew: Callable[..., Any], answered: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray.train.torch, "TorchTrainer", HangingTrainer)
    spec = make_spec("t0000")
    spec = spec.model_copy(update={"recipe": spec.recipe.model_copy(update={"devices": 2})})
    resources = ResourceConfig(cpu=3.0, gpu=1.0).model_dump_json()
    trial = run_on_cluster(spec, resources, holdings="list", interrupt=lambda: False)
    run = finish(trial, on_report=lambda record: None).runs[-1]
    assert (run.status, run.stop_reason) == (Status.FAILED, "TrialHung: no step for 9 s")
    assert "Thread training: here" in (run.traceback or "")
    assert len(answered.killed) == 1  # The mailbox.
    Trainer.made.clear()


def test_crew_that_is_closed_ends_its_workers_and_waits_for_ray_train(
    crew: Callable[..., Any], answered: Ray
) -> None:
    made, trainer = crew()
    mailbox = made._mailbox
    for worker in ("first", "second"):
        answered.get(mailbox.arrive.remote(worker))
    threading.Timer(0.02, trainer.gate.set).start()
    made.close()
    assert answered.killed == ["first", "second", mailbox]
    assert not made._fitting.is_alive()


def test_crew_that_has_ended_kills_nothing_but_its_mailbox(
    crew: Callable[..., Any], answered: Ray
) -> None:
    made, trainer = crew()
    answered.get(made._mailbox.arrive.remote("first"))
    made._mailbox.actor._said.put_nowait(Ended(0, "{}"))
    made.receive(timeout_s=0.0)
    let_go(made, trainer)
    made.close()
    assert answered.killed == [made._mailbox]


@pytest.mark.parametrize("error", [RayError("lost"), GetTimeoutError("late")])
def test_lost_mailbox_does_not_keep_a_crew_from_closing(
    crew: Callable[..., Any], answered: Ray, error: Exception
) -> None:
    made, trainer = crew()
    answered.error = error
    threading.Timer(0.02, trainer.gate.set).start()
    made.close()
    assert answered.killed == [made._mailbox]


def test_question_of_a_rank_waits_for_its_answer() -> None:
    async def talk() -> None:
        mailbox = _Mailbox()
        asked = asyncio.create_task(mailbox.ask(Standing("{}")))
        assert await mailbox.receive(SOON_S) == Standing("{}")
        assert not asked.done()
        await mailbox.answer("enough")
        assert await asked == "enough"
        later = asyncio.create_task(mailbox.receive(SOON_S))
        await mailbox.tell(Ended(0, "{}"))
        assert await later == Ended(0, "{}")

    asyncio.run(talk())


@pytest.fixture
def works(answered: Ray, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lets ranks work on nothing; lists what they were to do."""
    done: list[Any] = []
    monkeypatch.setattr(multi_gpu, "set_up_worker", lambda plugins: done.append(plugins))
    monkeypatch.setattr(multi_gpu, "note_group", lambda *given: done.append(given))
    monkeypatch.setattr(supervisor, "work", lambda *given: done.append(given))
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: "cuda:5")
    # A rank imports Ray for itself.
    for name in ("get", "get_runtime_context"):
        monkeypatch.setattr(ray, name, getattr(answered, name))
    return done


def test_rank_works_on_its_own_device_and_tells_of_a_hang(
    answered: Ray, works: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[Any] = []

    class Watchdog:
        def __init__(self, *, on_hang: Any) -> None:
            watched.append(on_hang)

        def watch(self, *, limit_s: float) -> None:
            watched.append(limit_s)

    monkeypatch.setattr(multi_gpu, "Watchdog", Watchdog)
    monkeypatch.setattr(multi_gpu, "LEAVE_S", 0.0)
    monkeypatch.setattr(multi_gpu, "leave", lambda: watched.append("left"))
    mailbox = Here(_Mailbox())
    config = {"spec": make_spec("t0000").model_dump_json(), "plugins": "p", "mailbox": mailbox}
    for rank in (0, 1):
        monkeypatch.setattr(Ranks, "here", classmethod(lambda cls, rank=rank: Ranks(rank, 2)))
        _rank({**config, "holdings": "list", "hang_after_s": 9.0})
    assert mailbox.actor._workers == ["this worker"] * 2
    plugins, held, (spec, ranks, channel) = works[:3]
    assert (plugins, held) == ("p", ("list", "t0000"))
    assert (spec.allotment.device, ranks) == ("cuda:5", Ranks(0, 2))
    # The others wait for the first, which alone is watched.
    on_hang, limit_s = watched
    assert limit_s == 9.0
    on_hang("Thread training: here", 12.0)
    said = mailbox.actor._said.get_nowait()
    assert said.rank == 0 and isinstance(said.error, TrialHung) and watched[-1] == "left"
    assert str(said.error) == "no step for 12 s\nThread training: here"
    mailbox.actor._answers.put_nowait("enough")
    assert channel.ask(Standing("{}")) == "enough"
    channel.tell(Ended(0, error=ConfigError("no")))
    asked, told = (mailbox.actor._said.get_nowait() for _ in range(2))
    assert asked == Standing("{}") and str(told.error) == "no"
    assert isinstance(channel, _Channel)


def test_rank_that_may_hang_for_ever_is_not_watched(
    works: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_gpu, "Watchdog", lambda **_: pytest.fail("is watched"))
    monkeypatch.setattr(Ranks, "here", classmethod(lambda cls: Ranks(0, 2)))
    config = {"spec": make_spec("t0000").model_dump_json(), "plugins": "", "holdings": "list"}
    _rank({**config, "mailbox": Here(_Mailbox()), "hang_after_s": float("inf")})
    assert len(works) == 3


def test_groups_of_a_dead_trial_are_removed_once_each(
    answered: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Any] = []
    monkeypatch.setattr(placement_groups, "remove_placement_group", removed.append)
    groups, (one, two) = PlacementGroups(), (SimpleNamespace(id=i) for i in range(2))
    for trial_id, group in (("t0000", one), ("t0000", one), ("t0000", two), ("t0001", two)):
        monkeypatch.setattr(placement_groups, "get_current_placement_group", lambda g=group: g)
        note_group(groups.name, trial_id)
    groups.release("t0000")
    assert removed == [one, two]
    groups.release("t0000")
    groups.release("t0009")
    assert removed == [one, two]
    answered.error = RayError("lost")
    groups.release("t0001")
    assert removed == [one, two]
    assert PlacementGroups().name != groups.name
