"""Lightning's trainer as a training function: `SpeedCallback` keeps the clock and reports.

| moment in `trainer.fit`                      | clock                       |
|----------------------------------------------|-----------------------------|
| before `on_train_start`, with sanity check   | set-up                      |
| batches loaded, steps, other callbacks       | training clock              |
| validation, with its loader and its hooks    | stopped                     |
| `trainer.save_checkpoint`, whoever calls it  | stopped                     |

```python
def my_train(params, run):
    trainer = Trainer(max_epochs=10, devices=1, callbacks=[SpeedCallback(run, metric="val_acc")])
    trainer.fit(MyModule(lr=params["lr"]), train_loader, validation_loader)
```

Needs `pip install 'tune_speed[lightning]'`. With `pytorch_lightning`, import that one first.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tune_speed.core.errors import ConfigError
from tune_speed.custom import OwnRun, StopTraining

try:
    # Each has trainers that refuse the callbacks of the other.
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        try:
            from lightning.pytorch import Callback
        except ImportError:
            from pytorch_lightning import Callback
except ImportError as error:
    raise ConfigError.of(
        "tune_speed.custom.lightning",
        "needs Lightning, which is not installed",
        hint="Install it with `pip install 'tune_speed[lightning]'`.",
    ) from error

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

P = ParamSpec("P")
R = TypeVar("R")


class SpeedCallback(Callback):  # type: ignore[misc]
    """Runs the training clock of `trainer.fit`, reports each validation, and ends the fit.

    `fixed_length`: the last validation counts as that of the end. Let one fall on the last step, or
    call `trainer.validate` after `trainer.fit`. `anytime`: the fit ends once two validations in a
    row hold the target; validating often costs no training time.

    Once the run has ended, `trainer.should_stop` is set; where Lightning would continue
    nevertheless, for `min_epochs` or `min_steps`, `StopTraining` is raised through it. An
    interrupted attempt starts afresh, unless your function calls `run.restored()` and
    `run.save(...)`.
    """

    def __init__(self, run: OwnRun, metric: str = "val_acc") -> None:
        """`metric` is the name under which validation logs the target's; `val_loss` is the loss."""
        super().__init__()
        self._run, self._metric = run, metric
        self._timed, self._wrapped = ExitStack(), ExitStack()
        self._steps, self._reported_steps = 0, -1
        self._ended: str | None = None

    def setup(self, trainer: "Trainer", pl_module: "LightningModule", stage: str) -> None:
        """Raises: ConfigError for a trainer of several processes, which have not this clock."""
        if trainer.world_size > 1:
            must = "must be 1: a trial trains on the device that it was given"
            given = f"{trainer.world_size} processes"
            raise ConfigError.of("Trainer.devices", must, given=given)

    def on_train_start(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Starts the clock. Raises: ConfigError if nothing is to be validated."""
        if not trainer.enable_validation:
            raise ConfigError.of(
                "Trainer.fit",
                "must be given validation data, and the module a validation_step",
                hint=f"{self._metric} is read after each validation.",
            )
        self._steps = trainer.global_step
        self._take_off_the_clock(trainer)
        self._heed(trainer, lambda: self._timed.enter_context(self._run.timed()))

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        """Raises: StopTraining if Lightning continues although it was to stop."""
        if self._ended is not None:
            raise StopTraining(self._ended)

    def on_train_batch_end(self, trainer: "Trainer", *_: Any, **__: Any) -> None:
        """Counts a step if the batch ended one."""
        # With accumulation, not each batch ends a step.
        if trainer.global_step > self._steps:
            self._steps = trainer.global_step
            self._heed(trainer, self._run.step)

    def on_validation_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Reports the metric, once after each step. Raises: ConfigError if it was not logged."""
        if trainer.sanity_checking or trainer.global_step <= self._reported_steps:
            return
        if self._metric not in trainer.callback_metrics:
            logged = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise ConfigError.of(
                "SpeedCallback.metric",
                f"must be among what the module logged, which is {logged}",
                given=repr(self._metric),
                hint=f'Log it in validation: self.log("{self._metric}", …).',
            )
        self._reported_steps = trainer.global_step
        logged, batches = trainer.callback_metrics, trainer.num_training_batches
        has_length = batches not in (0, float("inf"))
        report = partial(
            self._run.evaluated,
            step=trainer.global_step,
            metric=float(logged[self._metric]),
            epoch=(trainer.fit_loop.total_batch_idx + 1) / batches if has_length else None,
            loss=float(logged["val_loss"]) if "val_loss" in logged else None,
        )
        self._heed(trainer, report)

    def on_train_end(self, trainer: "Trainer", pl_module: "LightningModule") -> None:
        """Stops the clock."""
        self._timed.close()

    def teardown(self, *_: Any, **__: Any) -> None:
        """Stops the clock and leaves the trainer as it was."""
        self._timed.close()
        self._wrapped.close()

    on_exception = teardown

    def _heed(self, trainer: "Trainer", report: Callable[[], object]) -> None:
        if self._ended is not None:
            return
        try:
            report()
        except StopTraining as stop:
            self._ended = str(stop)
            trainer.should_stop = True

    def _take_off_the_clock(self, trainer: "Trainer") -> None:
        # Hooks would not do: Lightning makes the validation's iterator, and with it worker
        # processes, before the first of them, and saves after the last.
        validation = trainer.fit_loop.epoch_loop.val_loop
        self._wrapped.close()
        for owner, name, is_skipped in (
            # Lightning would validate once more when it is to stop.
            (validation, "run", True),
            (trainer, "save_checkpoint", False),
        ):
            call = getattr(owner, name)
            setattr(owner, name, self._untimed(call, is_skipped=is_skipped))
            # Without the instance's attribute, the class's own method is back.
            self._wrapped.callback(delattr, owner, name)

    def _untimed(self, call: Callable[P, R], *, is_skipped: bool) -> Callable[P, R | None]:
        """Returns the call off the clock; once the run has ended, as it was or `is_skipped`."""

        @wraps(call)
        def untimed(*args: P.args, **kwargs: P.kwargs) -> R | None:
            if self._ended is not None:
                return None if is_skipped else call(*args, **kwargs)
            with self._run.untimed():
                return call(*args, **kwargs)

        return untimed
