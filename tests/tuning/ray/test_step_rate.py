import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from helpers.training.tiny import Tiny, make_recipe

from tune_speed.components.models.base import ModelConfig
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.split import SplitConfig
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.sharing import Tenancy
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training.trial import Allotment
from tune_speed.training.workload import Target, Workload
from tune_speed.tuning.ray import step_rate
from tune_speed.tuning.ray.step_rate import PackedSteps

WORKLOAD = Workload(
    dataset=Digits(),
    target=Target(value=0.9),
    split=SplitConfig(validation_frac=0.2, train_samples=100, validation_samples=50),
)
ALLOTMENT = Allotment(device="cpu", cpu_threads=1, max_cotenants=1)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> PackedSteps:
    monkeypatch.setattr(step_rate, "WARM_UP_S", 0.02)
    monkeypatch.setattr(step_rate, "MARGIN_S", 0.01)
    return packed(Tiny())


def packed(model: ModelConfig) -> PackedSteps:
    return PackedSteps(make_recipe(model=model), WORKLOAD, ALLOTMENT, "mine")


def test_steps_are_counted_by_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a sixteenth of one on a clock of the test's own."""
    seconds, probe = [0.0], step_rate.probe_step

    @contextmanager
    def timed(*args: Any, **kwargs: Any) -> Iterator[Callable[[Any], None]]:
        with probe(*args, **kwargs) as take:

            def step(batches: Any) -> None:
                take(batches)
                seconds[0] += 1 / 16

            yield step

    monkeypatch.setattr(step_rate, "probe_step", timed)
    monkeypatch.setattr(step_rate, "Clock", partial(Clock, now=lambda: seconds[0]))
    with packed(Tiny()) as steps:
        assert steps.step_s == 1 / 16
        before_s = seconds[0]
        assert steps.rate(window_s=0.25) == 16.0
        # 4 steps, and 3 on either side of them.
        assert seconds[0] - before_s == 10 / 16
        assert 0 < steps.memory_frac() < 1 and steps.wait_frac >= 0


def test_it_is_a_tenant_of_its_device_like_a_trial(steps: PackedSteps) -> None:
    with Tenancy.begin(steps.device_key, study="theirs", trial="t0000") as theirs:
        with steps:
            assert theirs.others() == ("mine/packing",)
        assert theirs.others() == ()


def test_it_stands_still_while_somebody_measures(steps: PackedSteps) -> None:
    """A thread measures as soon as it is let; the steps meanwhile take no time that counts."""
    turns: list[bool] = []

    def measure() -> None:
        with Turnstile.open(steps.device_key) as turnstile:
            with turnstile.measuring(patience_s=20) as turn:
                time.sleep(0.1)
            turns.append(turn is not None and turn.is_isolated)

    with steps:
        thread = threading.Thread(target=measure)
        thread.start()
        rates = []
        while thread.is_alive():
            rates.append(steps.rate(window_s=0.05))
        thread.join()
    assert turns == [True]
