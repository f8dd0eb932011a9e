import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.training.tiny import CPU, NUM_CLASSES, make_recipe, make_splits
from torch import Tensor, nn

from tune_speed.components.speedups.base import Shape
from tune_speed.data.loaders.configs import Streaming
from tune_speed.experiments.profiling import pipeline as pipeline_module
from tune_speed.experiments.profiling.phases import PHASES, PhaseTimer, TimedGradient, time_replays
from tune_speed.experiments.profiling.pipeline import open_pipeline
from tune_speed.training.step.recorded import RECORDERS, Recorded, RecordedStep
from tune_speed.training.step.step import Group, Stepper

SHAPE = Shape(6, 6)
SIZE, BATCHES = 8, 2
LOAD_S, FORWARD_S, BACKWARD_S, UPDATE_S = 3.0, 5.0, 11.0, 7.0


class FakeClock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, sleep: Callable[[float], None]) -> Tensor:
        ctx.sleep = sleep
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.sleep(BACKWARD_S)
        return gradients[0], None


class SlowNetwork(nn.Module):
    def __init__(self, sleep: Callable[[float], None]) -> None:
        super().__init__()
        self.sleep = sleep
        self.linear = nn.Linear(36, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        self.sleep(FORWARD_S)
        logits: Tensor = SlowBackward.apply(self.linear(images.flatten(1)), self.sleep)
        return logits


def batches(sleep: Callable[[float], None], seconds: float) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(BATCHES):
        sleep(seconds)
        yield torch.ones(SIZE, 1, 6, 6), torch.zeros(SIZE, dtype=torch.long)


def step_of(
    timer: PhaseTimer, sleep: Callable[[float], None], load_s: float, update_s: float
) -> Callable[[], None]:
    recipe = make_recipe(batch_size=SIZE, accumulation_steps=BATCHES)
    model = SlowNetwork(sleep)
    stepper = Stepper(model, model, recipe, device=CPU)
    update = stepper.optimizer.step
    stepper.optimizer.step = lambda *_: (sleep(update_s), update())[1]  # type: ignore[method-assign]
    stepper.gradient = TimedGradient(stepper.gradient, timer, stepper.scaler)

    def step() -> None:
        group = Group(SIZE * BATCHES, timer.over(batches(sleep, load_s), CPU))
        stepper.learn(group, SHAPE, frac=1.0)

    return step


def make_timer(clock: FakeClock, *, device_s: float = 0.0) -> PhaseTimer:
    return PhaseTimer(synchronize=lambda: clock.sleep(device_s), now=clock)


def test_each_phase_gets_what_its_part_of_the_step_takes() -> None:
    clock = FakeClock()
    timer = make_timer(clock)
    step = step_of(timer, clock.sleep, LOAD_S, UPDATE_S)
    with timer.on():
        step()
    assert timer.total_s == {
        **dict.fromkeys(PHASES, 0.0),
        "data_wait": BATCHES * LOAD_S,
        "forward": BATCHES * FORWARD_S,
        "backward": BATCHES * BACKWARD_S,
        "optimizer": UPDATE_S,
    }


def test_phases_sum_up_to_the_time_of_the_step() -> None:
    clock = FakeClock()
    timer = make_timer(clock, device_s=0.25)
    step = step_of(timer, clock.sleep, LOAD_S, UPDATE_S)
    with timer.on():
        began_s = clock()
        step()
    assert sum(timer.total_s.values()) == pytest.approx(clock() - began_s)


def test_waiting_for_the_device_is_no_launching() -> None:
    clock = FakeClock()
    timer = make_timer(clock, device_s=0.25)
    with timer.on():
        timer.enter("forward")
        clock.sleep(2.0)
    assert timer.total_s["forward"] == 2.25
    assert timer.launched_s["forward"] == 2.0


def test_step_with_the_timer_off_has_no_borders() -> None:
    clock, synchronised = FakeClock(), list[float]()
    timer = PhaseTimer(synchronize=lambda: synchronised.append(clock()), now=clock)
    step_of(timer, clock.sleep, LOAD_S, UPDATE_S)()
    assert clock() == BATCHES * (LOAD_S + FORWARD_S + BACKWARD_S) + UPDATE_S
    assert (synchronised, set(timer.total_s.values())) == ([], {0.0})


def test_copies_to_the_device_are_told_from_waiting() -> None:
    """The device is torch's `meta`, which every machine has."""
    clock, meta = FakeClock(), torch.device("meta")
    timer = make_timer(clock, device_s=1.0)
    on_host = torch.ones(3, 4)

    def loaded() -> Iterator[Tensor]:
        yield on_host.to(meta)
        yield torch.empty(3, 4, device=meta).copy_(on_host)
        yield on_host + 1

    with timer.on():
        kinds = [batch.device.type for batch in timer.over(loaded(), meta)]
    assert kinds == ["meta", "meta", "cpu"]
    assert timer.copied_bytes == 2 * on_host.nbytes
    assert timer.total_s["host_to_device"] == 2.0


def test_really_sleeping_parts_are_found() -> None:
    timer = PhaseTimer(synchronize=lambda: None)
    with timer.on():
        step_of(timer, lambda s: time.sleep(s / 500), 20.0, 10.0)()
    assert timer.total_s["data_wait"] >= BATCHES * 20.0 / 500
    assert timer.total_s["optimizer"] >= 10.0 / 500
    assert timer.total_s["backward"] >= BATCHES * BACKWARD_S / 500


@pytest.mark.parametrize("loader", [None, Streaming(workers=0)])
def test_pipeline_of_a_recipe_has_all_phases_and_trains_nothing(loader: Streaming | None) -> None:
    changes = {} if loader is None else {"loader": loader}
    recipe = make_recipe(batch_size=8, accumulation_steps=2, **changes)
    opened = open_pipeline(recipe, make_splits(20), seed=0, device=CPU, before_step=lambda: None)
    with opened as pipeline:
        before = [parameter.clone() for parameter in pipeline.stepper.model.parameters()]
        with pipeline.timer.on():
            samples = [pipeline.take() for _ in range(4)]
    assert samples == [16, 4, 16, 4]  # Ragged at an epoch's end.
    found = pipeline.timer.total_s
    assert all(found[phase] > 0 for phase in ("data_wait", "forward", "backward", "optimizer"))
    assert found["host_to_device"] == found["forward_backward"] == 0.0
    for parameter, was in zip(pipeline.stepper.model.parameters(), before, strict=True):
        assert torch.equal(parameter, was)


def test_recorded_steps_have_no_border_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder calls again where CUDA would replay, and a border inside would break it."""
    synchronised = list[str]()
    timer = PhaseTimer(synchronize=lambda: synchronised.append("wait"))

    def record(call: Callable[[], list[Tensor]], device: torch.device, pool: Any) -> Recorded:
        before = len(synchronised)
        results = call()

        def replay() -> None:
            call()
            assert len(synchronised) == before or timer.phase == "forward_backward"

        return Recorded(replay, [torch.ones(tensor.shape) for tensor in results], pool)

    monkeypatch.setitem(RECORDERS, "cpu", record)
    monkeypatch.setattr(RecordedStep, "_refuse_nonsense", lambda *_: None)
    recipe = make_recipe(batch_size=SIZE, accumulation_steps=BATCHES, cuda_graph=True)
    model = SlowNetwork(lambda seconds: None)
    stepper = Stepper(model, model, recipe, device=CPU)
    assert stepper.recorder is not None
    time_replays(stepper.recorder, timer)
    with timer.on():
        arriving = timer.over(batches(lambda seconds: None, 0.0), CPU)
        stepper.take_still(Group(SIZE * BATCHES, arriving), SHAPE)
    assert timer.total_s["forward_backward"] > 0
    assert timer.total_s["forward"] == timer.total_s["backward"] == 0.0


@pytest.mark.parametrize(("drop_last", "kinds"), [(False, [16, 4]), (True, [16])])
def test_warm_up_records_the_kinds_of_step_that_real_batches_have_and_no_others(
    monkeypatch: pytest.MonkeyPatch, drop_last: bool, kinds: list[int]
) -> None:
    recorded = list[int]()

    def record(call: Callable[[], list[Tensor]], device: torch.device, pool: Any) -> Recorded:
        results = call()
        recorded.append(len(recorded))
        return Recorded(lambda: None, results, pool)

    monkeypatch.setitem(RECORDERS, "cpu", record)
    monkeypatch.setattr(RecordedStep, "_refuse_nonsense", lambda *_: None)
    monkeypatch.setattr(pipeline_module, "WARM_UP_S", 0.0)
    fields = {"cuda_graph": True, "drop_last": drop_last}
    recipe = make_recipe(batch_size=8, accumulation_steps=2, **fields)
    opened = open_pipeline(recipe, make_splits(20), seed=0, device=CPU, before_step=lambda: None)
    with opened as pipeline:
        pipeline_module.warm_up_pipeline(pipeline, recipe, device=CPU)
        assert {pipeline.take() for _ in range(4)} == {*kinds}
    assert len(recorded) == len(kinds)


def test_what_is_asked_before_a_step_may_end_it() -> None:
    def refuse() -> None:
        raise InterruptedError

    opened = open_pipeline(make_recipe(), make_splits(), seed=0, device=CPU, before_step=refuse)
    with pytest.raises(InterruptedError), opened as pipeline:
        pipeline.take()
