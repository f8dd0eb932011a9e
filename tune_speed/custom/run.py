"""What a training function of one's own is handed: clock, limits, evaluations, checkpoints.

| moment                       | clock                          |
|------------------------------|--------------------------------|
| before the first `timed()`   | `setup_s`                      |
| inside `timed()`             | `train_s`, the one that counts |
| inside `untimed()`, and else | `eval_s`                       |
| inside `evaluated`, `save`   | `wall_s` alone                 |

On CUDA the device is synchronised where the clock changes, and nowhere else.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from tune_speed.core.records import MEASURED, Evaluation, Status, StepTime
from tune_speed.core.words import SCORE, StopKind, StopReason, sentence
from tune_speed.custom.checkpoints import CountedSteps, SavedRuns, Standing
from tune_speed.custom.spec import OwnSpec
from tune_speed.runtime import heartbeat
from tune_speed.runtime.clock import Clock, Span
from tune_speed.runtime.sharing import Sharing

if TYPE_CHECKING:
    from tune_speed.custom.isolated_steps import IsolatedSteps

# Beyond it a float has no room for a count.
MOST_STEPS = 2**53


class StopTraining(BaseException):
    """The trial has its outcome: the training function is to end, whatever it catches.

    No `Exception`, so that handlers of those let it pass.
    """


class BadReport(ValueError):
    """A training function reported what cannot be; its trial has failed."""


class Outcome(NamedTuple):
    """How a run ended."""

    status: Status
    reason: StopReason
    time_to_target_s: float | None = None


class OwnRun:
    """One run of a training function. For the thread that it is called in."""

    def __init__(
        self,
        spec: OwnSpec,
        *,
        device: str,
        clock: Clock,
        place: Sharing,
        on_report: Callable[["OwnRun"], None],
        interrupt: Callable[[], bool],
        saved: SavedRuns | None = None,
        steps: "IsolatedSteps | None" = None,
    ) -> None:
        """Begins with the set-up.

        No span of `clock` runs. `on_report` is called after each evaluation, with the clock
        stopped; `interrupt` says whether to end without an outcome; without `steps` the clock
        counts what passes.
        """
        self._spec, self._task, self._device = spec, spec.workload, device
        self._clock, self._place, self._saved = clock, place, saved
        self._on_report, self._interrupt, self._steps = on_report, interrupt, steps
        self._around: Span = "setup_s"
        self._is_closed = False
        self._reported_s: float | None = None
        self.evaluations: list[Evaluation] = []
        self.outcome: Outcome | None = None
        """How the run ended; None while it continues."""
        self.is_interrupted = False
        """Whether it ended without an outcome of its own."""
        clock.start("setup_s")

    # --- What the function may read

    @property
    def seed(self) -> int:
        """Seed of this run. Python's, NumPy's and torch's generators were given it already."""
        return self._spec.seed

    @property
    def part(self) -> Literal["validation", "test"]:
        """What to evaluate on: a search sees `validation`, certified results are of `test`."""
        return self._spec.evaluated_on

    @property
    def device(self) -> str:
        """Where to train: `cpu` or `cuda`."""
        return self._device

    @property
    def cpu_threads(self) -> int:
        """Threads of one operation on the CPU; torch is set to it."""
        return self._spec.allotment.cpu_threads

    @property
    def max_train_s(self) -> float:
        """Limit of the training clock [s]."""
        return self._task.max_train_s

    @property
    def reports_clock(self) -> bool:
        """Whether the function reports its training clock itself."""
        return self._reported_s is not None

    @property
    def train_s(self) -> float:
        """The training clock [s]: as reported, by isolated step times, or as it passed."""
        if self._reported_s is not None:
            return self._reported_s
        isolated_s = None if self._steps is None else self._steps.train_s
        return self._clock.elapsed("train_s") if isolated_s is None else isolated_s

    @property
    def step_time(self) -> StepTime | None:
        """The isolated step time that the clock is made of; None: it counts what passes."""
        return None if self._steps is None or self.reports_clock else self._steps.step_time

    # --- What the function reports

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the block as training: loading, augmentation, forward, backward, optimizer."""
        with self._counted("train_s"):
            yield

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Takes the block off the training clock: evaluation, logging, saving."""
        with self._counted("eval_s"):
            yield

    def step(self) -> None:
        """Reports that an optimizer step is done; optional, and about a microsecond.

        With it limits hold at the step, a trial that hangs is noticed, and trials that share a
        device measure between two steps. Call it after each step, or never.

        Raises: StopTraining once the run has ended.
        """
        self._refuse_ended()
        if self._clock.current == "train_s":
            if self._steps is not None and not self.reports_clock and self._steps.taken():
                self._retell()
            self._clock.let_others_measure()
        else:
            heartbeat.beat()
        self._end_if_over_time()
        self._end_if_interrupted()

    def evaluated(
        self,
        *,
        step: int,
        metric: float,
        epoch: float | None = None,
        samples: int | None = None,
        loss: float | None = None,
        train_loss: float | None = None,
        values: Mapping[str, float] | None = None,
        train_s: float | None = None,
    ) -> None:
        """Reports an evaluation; the clock is stopped meanwhile.

        Args:
            step: optimizer steps done, more than at the last evaluation.
            metric: value of the target's metric.
            epoch: passes over the training data done, if known.
            samples: training samples seen, if known.
            loss: of the part that was evaluated.
            train_loss: mean of the training since the last evaluation.
            values: other metrics by name.
            train_s: the training clock [s], for functions that train elsewhere, as in processes
                that they start; the run's own clock does not count then.

        Raises: StopTraining once the run has ended: the target is met (`mode: anytime`), its time
            is over, the search stops it, or the metric is not finite. BadReport for what cannot be.
        """
        self._refuse_ended()
        # The report may write files and wait for others: none of it is training.
        with self._stopped():
            reading_s = self._reading(train_s)
            self._check_step(step, reading_s)
            value = _number("metric", metric)
            if not math.isfinite(value):
                figures = {"metric": self._task.target.metric, "value": value, "steps": step}
                self._end(Status.DIVERGED, StopReason.of(StopKind.NOT_A_NUMBER, **figures))
            self._add(
                Evaluation(
                    step=step,
                    samples=0 if samples is None else samples,
                    epoch=0.0 if epoch is None else epoch,
                    train_s=reading_s,
                    loss=_finite_or_none("loss", loss),
                    train_loss=_finite_or_none("train_loss", train_loss),
                ),
                {**(values or {}), self._task.target.metric: value},
            )
            self._on_report(self)
            self._judge()
        self._end_if_interrupted()

    def save(self, make_state: Callable[[], Mapping[str, Any]]) -> None:
        """Saves the run if a checkpoint is due; off the clock.

        `make_state` is called only when `search.checkpoint_every` has passed. What it returns may
        hold what `torch.load(weights_only=True)` reads: tensors, numbers, text, lists and dicts.
        """
        if self._saved is None or not self.evaluations or not self._saved.is_due():
            return
        with self._stopped():
            standing = Standing(
                evaluations=tuple(self.evaluations),
                reported_s=self._reported_s,
                clocks=self._clock.clocks(),
                seen=self._place.seen_so_far(),
                counted=None if self._steps is None else self._steps.counted(),
            )
            self._saved.save(make_state(), standing)

    def restored(self) -> dict[str, Any] | None:
        """Returns what an interrupted attempt saved last, to continue there; None: nothing."""
        if self.evaluations:
            raise BadReport("restored() must be called before the first evaluation")
        found = None if self._saved is None else self._saved.find()
        if found is None:
            return None
        state, standing = found
        self.evaluations = list(standing.evaluations)
        self._reported_s = standing.reported_s
        self._clock.resume(standing.clocks)
        self._place.resume(standing.seen)
        if self._steps is not None:
            passed = CountedSteps.none(self.evaluations, self._clock.elapsed("train_s"))
            self._steps.resume(standing.counted or passed)
        return state

    # --- How it ends

    def returned(self) -> None:
        """Settles the outcome after the function returned: the last evaluation is the final one."""
        if self.outcome is not None:
            return
        if not any(evaluation.step > 0 for evaluation in self.evaluations):
            why = (
                f"{self._task.function} must call run.evaluated(step=…, metric=…) at least once,"
                " but returned without"
            )
            self.outcome = Outcome(Status.FAILED, StopReason.of(StopKind.OTHER, text=why))
            return
        time_s = self._task.crossing(self.evaluations, at_end=True)
        status = Status.MISSED if time_s is None else Status.REACHED
        self.outcome = Outcome(status, self._at_end(status), time_s)

    def close(self) -> None:
        """Stops the clock for good, whatever the function left running."""
        self._is_closed = True
        self._clock.release()
        if self._steps is not None:
            self._steps.close()

    @contextmanager
    def _counted(self, span: Span) -> Iterator[None]:
        self._refuse_ended()
        before, self._around = self._around, span
        self._switch(span)
        try:
            yield
        finally:
            # Set-up ends where training begins.
            self._around = "eval_s" if before == "setup_s" and span == "train_s" else before
            self._switch(self._around)

    def _switch(self, span: Span) -> None:
        # A block that an error left open may end later, when it is collected as garbage.
        if self._is_closed or self._clock.current == span:
            return
        self._stop()
        self._clock.start(span)

    def _stop(self) -> None:
        span = self._clock.current
        if span is not None:
            self._clock.stop()
        # What comes after the outcome changes nothing of it.
        if span != "train_s" or self._steps is None or self.outcome is not None:
            return
        if self._steps.stopped():
            self._retell()

    def _retell(self) -> None:
        if self._steps is None or self.reports_clock:
            return
        times = zip(self.evaluations, self._steps.retold(), strict=True)
        self.evaluations = [each.model_copy(update={"train_s": s}) for each, s in times]

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        self._stop()
        try:
            yield
        finally:
            self._switch(self._around)

    def _reading(self, train_s: float | None) -> float:
        """Returns the training clock [s]: the run's own, or what the function reports of its own.

        Raises: BadReport if it runs backwards, or ahead of the time that has passed.
        """
        last_s = self.evaluations[-1].train_s if self.evaluations else 0.0
        if train_s is None and self._reported_s is None:
            return self.train_s
        if train_s is None:
            self._fail("train_s must be given at each evaluation, or at none")
        reading_s = _number("train_s", train_s)
        passed_s = self._clock.clocks().wall_s
        if not (math.isfinite(reading_s) and reading_s >= last_s):
            self._fail(f"train_s must not run backwards, but got {reading_s:g} after {last_s:g}")
        if reading_s > passed_s:
            self._fail(
                f"train_s must be at most what has passed, {passed_s:.3f} s, but got {reading_s:g}"
            )
        self._reported_s = reading_s
        return reading_s

    def _check_step(self, step: int, reading_s: float) -> None:
        last = self.evaluations[-1].step if self.evaluations else -1
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MOST_STEPS:
            self._fail(f"step must be a whole number, 0 or more, but got {step!r}")
        if step <= last:
            self._fail(f"step must be more than at the last evaluation, {last}, but got {step}")
        if step > 0 and reading_s <= 0:
            self._fail(
                f"training must be on the clock: {step} steps are done, but run.timed() has counted"
                " no time. Train inside `with run.timed():`"
            )

    def _add(self, evaluation: Evaluation, metrics: Mapping[str, float]) -> None:
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        fields = {name: value for name, value in finite.items() if name in MEASURED}
        own = {name: value for name, value in finite.items() if name not in MEASURED}
        self.evaluations.append(evaluation.model_copy(update={**fields, "values": own}))
        if self._steps is not None:
            self._steps.mark()
        self._place.look()

    def _judge(self) -> None:
        last, target = self.evaluations[-1], self._task.target
        is_met = last.step == 0 and target.holds(self._task.metric_of(last))
        if is_met and not target.seeks_best:
            met = sentence(SCORE, self._score())
            self._fail(f"the target must not be met before training, but {met}")
        self._end_if_over_time()
        if self._task.mode == "fixed_length":
            return
        time_s = self._task.crossing(self.evaluations, at_end=False)
        if time_s is not None:
            self._end(Status.REACHED, StopReason.of(StopKind.TARGET_MET, **self._score()), time_s)

    def _end_if_over_time(self) -> None:
        if self.train_s > self._task.max_train_s:
            figures = {"limit_s": self._task.max_train_s}
            figures |= self._score() if self.evaluations else {}
            self._end(Status.CAPPED, StopReason.of(StopKind.TIME_LIMIT, **figures))

    def _at_end(self, status: Status) -> StopReason:
        last, target = self.evaluations[-1], self._task.target
        # The time to target is that of the last evaluation, without what was trained after it.
        late_s = self.train_s - last.train_s
        figures = {**self._score(), "late_s": late_s if late_s > 0.01 * last.train_s else None}
        if status == Status.REACHED:
            return StopReason.of(target.met, **figures)
        is_single = 1 if target.holds(self._task.metric_of(last)) else None
        return StopReason.of(StopKind.ENDED_BELOW, is_single=is_single, **figures)

    def _score(self) -> dict[str, Any]:
        return self._task.target.compared(self._task.metric_of(self.evaluations[-1]))

    def _end_if_interrupted(self) -> None:
        if self._interrupt():
            self.is_interrupted = True
            self._end(Status.CAPPED, StopReason.of(StopKind.INTERRUPTED))

    def _refuse_ended(self) -> None:
        if self.outcome is not None:
            raise StopTraining(str(self.outcome.reason))

    def _end(self, status: Status, reason: StopReason, time_s: float | None = None) -> NoReturn:
        self.outcome = Outcome(status, reason, time_s)
        raise StopTraining(str(reason))

    def _fail(self, reason: str) -> NoReturn:
        self.outcome = Outcome(Status.FAILED, StopReason.of(StopKind.OTHER, text=reason))
        raise BadReport(reason)


def _number(name: str, value: Any) -> float:
    """Returns a number of Python's, NumPy's or torch's as a float. Raises: BadReport."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadReport(f"{name} must be a number, but got {value!r:.80}") from error


def _finite_or_none(name: str, value: float | None) -> float | None:
    number = math.nan if value is None else _number(name, value)
    return number if math.isfinite(number) else None
