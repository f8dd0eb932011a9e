"""Trials of training functions, on a clock that tests move by hand."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from tune_speed.core.targets import Target
from tune_speed.custom.run import OwnRun
from tune_speed.custom.spec import OwnRecipe, OwnSpec, OwnTask
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.sharing import Sharing
from tune_speed.training.trial import Allotment


class Hand:
    """A clock that only moves when a test moves it."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


def make_task(**changes: Any) -> OwnTask:
    fields: dict[str, Any] = {
        "function": "my_train",
        "function_hash": "0123456789abcdef",
        "target": Target(value=0.9),
        "mode": "anytime",
        "max_train_s": 60.0,
    }
    return OwnTask(**{**fields, **changes})


def make_own_spec(*, params: dict[str, Any] | None = None, **changes: Any) -> OwnSpec:
    task = changes.pop("workload", None) or make_task()
    fields: dict[str, Any] = {
        "study": "own",
        "trial_id": "t0000",
        "params": {"lr": 0.1},
        "recipe": OwnRecipe(params=params or {"lr": 0.1}),
        "workload": task,
        "workload_hash": task.identity(),
        "space_hash": "s",
        "seed": 3,
        "allotment": Allotment(device="cpu"),
    }
    return OwnSpec(**{**fields, **changes})


def make_run(
    hand: Hand,
    spec: OwnSpec | None = None,
    *,
    on_report: Callable[[OwnRun], None] = lambda run: None,
    interrupt: Callable[[], bool] = lambda: False,
) -> OwnRun:
    return OwnRun(
        spec or make_own_spec(),
        device="cpu",
        clock=Clock(synchronize=lambda: None, now=hand),
        place=Sharing.alone(),
        on_report=on_report,
        interrupt=interrupt,
    )


class CountedRun(OwnRun):
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
    task = make_task(target=target or Target(value=value), mode=mode, max_train_s=max_train_s)
    spec = make_own_spec(workload=task)
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
