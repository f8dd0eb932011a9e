"""A real run of a training function on a clock that tests wind by hand, for the adapters' tests."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tune_speed.core.targets import Target
from tune_speed.custom import OwnRun
from tune_speed.custom.spec import OwnRecipe, OwnSpec, OwnTask
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.sharing import Sharing


class Hand:
    """A clock that only moves when it is wound."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wind(self, seconds: float) -> None:
        self.now_s += seconds


class CountedRun(OwnRun):
    """A run that counts its optimizer steps, too."""

    counted_steps = 0

    def step(self) -> None:
        self.counted_steps += 1
        super().step()


@contextmanager
def run_on(
    hand: Callable[[], float],
    *,
    value: float = 0.9,
    target: Target | None = None,
    mode: Literal["fixed_length", "anytime"] = "fixed_length",
    max_train_s: float = 1e9,
    interrupt: Callable[[], bool] = lambda: False,
) -> Iterator[CountedRun]:
    """Yields a run on this clock, alone on its device; by default an accuracy is to be met."""
    task = OwnTask(
        target=target or Target(value=value),
        mode=mode,
        max_train_s=max_train_s,
        function="f",
        function_hash="0",
    )
    spec = OwnSpec(
        study="adapted",
        trial_id="t000",
        params={},
        recipe=OwnRecipe(params={}),
        workload=task,
        workload_hash="0",
        space_hash="0",
        seed=1,
    )
    key = f"adapted-{os.getpid()}"
    with Sharing.open(key, study="adapted", trial="t000", may_have_company=False) as sharing:
        run = CountedRun(
            spec,
            device="cpu",
            clock=Clock(synchronize=lambda: None, now=hand, turnstile=sharing.turnstile),
            place=sharing,
            on_report=lambda run: None,
            interrupt=interrupt,
        )
        yield run
        run.close()
