"""Training functions' trials with a clock that is set by hand."""

from collections.abc import Callable
from typing import Any

from tune_speed.core.targets import Target
from tune_speed.custom.run import OwnRun
from tune_speed.custom.spec import OwnRecipe, OwnSpec, OwnTask
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.sharing import Sharing
from tune_speed.training.trial import Allotment


class Hand:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

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
