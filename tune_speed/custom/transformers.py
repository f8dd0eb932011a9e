"""Hugging Face's Trainer as a training function: `SpeedCallback` keeps the clock and reports.

| moment in `trainer.train`                                 | clock                       |
|-----------------------------------------------------------|-----------------------------|
| before `on_train_begin`                                   | set-up                      |
| batches loaded, steps, logging, other callbacks           | training clock              |
| from a step or epoch after which Trainer is to evaluate   | stopped                     |
| or to save, until both are done                           |                             |

```python
def my_train(params, run):
    trainer = Trainer(
        model=BertForSequenceClassification(BertConfig(...)),
        args=TrainingArguments(learning_rate=params["lr"], eval_strategy="epoch", seed=run.seed),
        compute_metrics=accuracy,
        callbacks=[SpeedCallback(run, metric="eval_accuracy")],
        ...
    )
    trainer.train()
```

Needs `pip install 'tune_speed[transformers]'`.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tune_speed.core.errors import ConfigError
from tune_speed.custom import OwnRun, StopTraining

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ConfigError.of(
        "tune_speed.custom.transformers",
        "needs Hugging Face's transformers, which are not installed",
        hint="Install them with `pip install 'tune_speed[transformers]'`.",
    ) from error

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class SpeedCallback(TrainerCallback):  # type: ignore[misc]
    """Runs the training clock of `trainer.train`, reports each evaluation, and ends the training.

    `fixed_length`: the last evaluation counts as that of the end; with `eval_strategy="no"`, call
    `trainer.evaluate()` after `trainer.train()`. `anytime`: the training ends once two evaluations
    in a row hold the target; evaluating often costs no training time.

    Once the run has ended, Trainer neither evaluates nor saves once more. What it does not announce
    counts as training: a save with `save_strategy="best"`, and the first batch of an evaluation
    that no flag announced. In a search, `save_strategy="no"` spares the time of saving. An
    interrupted attempt starts afresh, unless your function calls `run.restored()` and
    `run.save(...)`.
    """

    def __init__(self, run: OwnRun, metric: str = "eval_accuracy") -> None:
        """`metric` is the target's in evaluations: that of `compute_metrics` after `eval_`."""
        self._run, self._metric = run, metric
        self._timed, self._untimed = ExitStack(), ExitStack()
        self._is_training = self._is_paused = self._is_awaited = False
        self._has_ended = False
        self._reported_steps = -1
        self._others: set[str] = set()

    def on_train_begin(self, args: "TrainingArguments", *_: Any, **__: Any) -> None:
        """Starts the clock. Raises: ConfigError for several processes; StopTraining."""
        if args.world_size > 1:
            raise ConfigError.of(
                "TrainingArguments",
                "must be of one process: a trial trains on the device that it was given",
                given=f"{args.world_size} processes",
            )
        # With auto_find_batch_size a training begins again without the end of the one before.
        self._stop_clock()
        self._timed.enter_context(self._run.timed())
        self._is_training = True
        if args.eval_on_start:
            self._await_evaluation()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Continues the clock. Raises: ConfigError if the last evaluation lacked the metric."""
        self._continue()

    on_epoch_begin = on_save = on_step_begin

    def on_step_end(self, args: Any, state: Any, control: "TrainerControl", **_: Any) -> None:
        """Counts an optimizer step; the clock is stopped if an evaluation or a save follows."""
        self._heed(control, self._run.step)
        self._pause_for(control)

    def on_epoch_end(self, args: Any, state: Any, control: "TrainerControl", **_: Any) -> None:
        """Stops the clock if an evaluation or a save follows."""
        self._pause_for(control)

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Stops the clock in an evaluation that nothing announced."""
        self._pause()

    def on_evaluate(
        self,
        args: "TrainingArguments",
        state: "TrainerState",
        control: "TrainerControl",
        metrics: Mapping[str, float],
        **kwargs: Any,
    ) -> None:
        """Reports the metric, unless no step was done since; the clock runs if no save follows."""
        if self._metric in metrics:
            self._is_awaited = False
            self._heed(control, lambda: self._report(state, metrics))
        self._others |= metrics.keys()
        # Of several data sets, another one has the metric.
        if not (self._is_awaited or control.should_save):
            self._resume()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Stops the clock. Raises: ConfigError if the last evaluation lacked the metric."""
        self._continue()
        self._stop_clock()

    def _heed(self, control: "TrainerControl", call: Callable[[], None]) -> None:
        try:
            if not self._has_ended:
                call()
        except StopTraining:
            self._has_ended = True
        self._end(control)

    def _end(self, control: "TrainerControl") -> None:
        if self._has_ended:
            control.should_training_stop = True
            control.should_evaluate = control.should_save = False

    def _report(self, state: "TrainerState", metrics: Mapping[str, float]) -> None:
        if state.global_step <= self._reported_steps:
            return
        self._reported_steps = state.global_step
        self._run.evaluated(
            step=state.global_step,
            metric=metrics[self._metric],
            epoch=state.epoch,
            loss=metrics.get("eval_loss"),
        )

    def _pause_for(self, control: "TrainerControl") -> None:
        self._end(control)
        if control.should_evaluate:
            self._await_evaluation()
        elif control.should_save:
            self._pause()

    def _await_evaluation(self) -> None:
        self._is_awaited = True
        self._others.clear()
        self._pause()

    def _pause(self) -> None:
        if self._is_training and not self._is_paused and not self._has_ended:
            self._untimed.enter_context(self._run.untimed())
            self._is_paused = True

    def _resume(self) -> None:
        self._untimed.close()
        self._is_paused = False

    def _continue(self) -> None:
        if self._is_awaited and not self._has_ended:
            found = ", ".join(sorted(self._others)) or "nothing"
            raise ConfigError.of(
                "SpeedCallback.metric",
                f"must be among what Trainer evaluated, which is {found}",
                given=repr(self._metric),
                hint="Return it from compute_metrics, there without eval_.",
            )
        self._resume()

    def _stop_clock(self) -> None:
        self._resume()
        self._timed.close()
        self._is_training = False
