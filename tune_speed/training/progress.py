"""How far a run is: samples seen, losses, evaluations, and whether it has ended."""

import math
from collections.abc import Callable, Mapping

from torch import Tensor, nn

from tune_speed.components.models.networks.libraries import loading_notes
from tune_speed.components.speedups.base import Shape
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Evaluation, RunResult, Status
from tune_speed.core.words import Note, NoteKind, StopKind, StopReason
from tune_speed.runtime.clock import Clock, Phase
from tune_speed.runtime.device import device_of
from tune_speed.runtime.sharing import Sharing
from tune_speed.training.accounts import Counts, PhaseState, ProgressState, Readings, RunTime
from tune_speed.training.build import Job
from tune_speed.training.evaluate import Evaluator
from tune_speed.training.step.recorded import RECORDERS
from tune_speed.training.step.step import accumulation_of, micro_batch_of
from tune_speed.training.trial import run_result


class Progress:
    """Counts a run's steps, evaluates it when it is due, and returns how it ended."""

    def __init__(
        self,
        job: Job,
        *,
        model: nn.Module,
        clock: Clock,
        sharing: Sharing,
        phases: Mapping[Shape, Phase],
        flop_per_sample: Mapping[Shape, float | None],
    ) -> None:
        """Begins before the first step.

        Rank 0 of the job's ranks evaluates for all. `phases` is what steps of each shape take in
        isolation; where it is empty, the clock is what counts. `flop_per_sample` are operations.
        """
        self.job, self.workload, self.sharing = job, job.workload, sharing
        self.time = RunTime(job, clock, sharing, phases)
        self.counts = Counts(job.device, flop_per_sample)
        self.readings = Readings(job.device)
        self.evaluator = Evaluator(job, model, clock)
        self.figures: Callable[[], dict[str, float]] = dict
        self.num_train = len(job.splits.train.labels)
        self.grid = self.workload.grid(num_train=self.num_train)
        self.total_steps = sum(num_steps for _, num_steps in job.step_schedule)
        self.evaluations: list[Evaluation] = []
        self.losses: list[float] = []
        """Validation losses so far, where the schedule follows them; all are finite, as a run with
        another one has ended."""
        # What a run is until it has ended by itself.
        self.status = Status.CAPPED

    @property
    def steps(self) -> int:
        return self.counts.steps

    def advance(self, shape: Shape, num_samples: int, loss_sum: Tensor, num_learned: int) -> None:
        """Counts one optimizer step, see `Counts.advance`."""
        self.counts.advance(shape, num_samples, loss_sum, num_learned)
        if self.time.phases:
            self.time.phases[shape].samples += num_samples

    def is_due(self) -> bool:
        """Whether to evaluate: a grid point was passed, the run ends, or its time is over."""
        last_seen = self.evaluations[-1].samples
        passed_grid = self.counts.samples // self.grid > last_seen // self.grid
        is_over_time = self.job.ranks.lately(self._is_over_time())
        return passed_grid or self._is_last() or is_over_time

    def evaluate(self) -> None:
        """Adds an evaluation of the model as it is: rank 0's."""
        ranks = self.job.ranks
        train_loss = self.counts.take_loss(ranks)
        mine = self._evaluation(train_loss) if ranks.is_first else None
        evaluation, self.losses = ranks.broadcast((mine, self.losses))
        assert evaluation is not None
        self.evaluations.append(evaluation)

    def _evaluation(self, train_loss: float | None) -> Evaluation:
        self.sharing.look()
        self.readings.read(has_trained=self.steps > 0)
        part = self.job.evaluated_on
        with self.time.clock.span("eval_s"):
            scores = self.evaluator.scores(part)
            if self.job.recipe.lr_schedule.follows_loss:
                # The schedule follows the validation part, whatever is evaluated.
                is_followed = part == "validation"
                followed = scores if is_followed else self.evaluator.scores("validation")
                if followed.loss is not None:
                    self.losses.append(followed.loss)
        own = {} if scores.value is None else {self.workload.target.metric: scores.value}
        return Evaluation(
            step=self.steps,
            samples=self.counts.samples,
            epoch=self.counts.samples / self.num_train,
            train_s=self.time.train_s,
            **{n: getattr(scores, n) for n in ("accuracy", "macro_f1", "micro_f1", "loss")},
            train_loss=train_loss,
            values=self.figures() | own,
        )

    def refuse_met_target(self) -> None:
        """Raises: ConfigError if the only evaluation, of the untrained model, meets the target."""
        target, untrained = self.workload.target, self.workload.metric_of(self.evaluations[0])
        if target.seeks_best or not target.holds(untrained):
            return
        harder, hint = ("exceed", "higher") if target.mode == "max" else ("be below", "lower")
        raise ConfigError.of(
            "workload.target.value",
            f"must {harder} the {target.metric} before training, which is {untrained:.4f}",
            given=f"{target.value:g}",
            hint=f"Choose a {hint} target.",
        )

    def verdict(self) -> StopReason | None:
        """Sets the status and returns why the run has ended, or None if it continues."""
        evaluation, target = self.evaluations[-1], self.workload.target
        value = self.workload.metric_of(evaluation)
        score = {"metric": target.metric, "value": value}
        if evaluation.train_loss is None or evaluation.loss is None:
            self.status = Status.DIVERGED
            return StopReason.of(StopKind.NOT_FINITE, metric="loss", steps=self.steps)
        if not math.isfinite(value):
            self.status = Status.DIVERGED
            return StopReason.of(StopKind.NOT_FINITE, metric=target.metric, steps=self.steps)
        if self._is_over_time():
            limit_s = self.workload.max_train_s
            return StopReason.of(StopKind.TIME_LIMIT, limit_s=limit_s, **score)
        if self._time_to_target() is not None:
            self.status = Status.REACHED
            return StopReason.of(target.met, **target.compared(value))
        if self._is_last():
            self.status = Status.MISSED
            return StopReason.of(StopKind.ENDED_BELOW, aim=target.value, **score)
        return None

    def result(self, *, stop_reason: StopReason | None = None) -> RunResult:
        result = run_result(
            self.status,
            evaluations=self.evaluations,
            clock=self.time.clock,
            sharing=self.sharing,
            steps=self.steps,
            samples=self.counts.samples,
            held_up_frac=self.readings.held_up_frac,
            flop=self.counts.flop,
            seed=self.job.seed,
            stop_reason=stop_reason or StopReason(),
            time_to_target_s=self._time_to_target() if self.status == Status.REACHED else None,
            batch_size=micro_batch_of(self.job.recipe),
            accumulation_steps=accumulation_of(self.job.recipe),
            device=device_of(self.job.device, self.job.recipe.devices),
            windows=tuple(self.sharing.windows),
            **self.time.figures(self.steps),
            **self.readings.figures(),
        )
        model, channels = self.evaluator.model, self.job.splits.train.pixels.shape[-1]
        recipe, texts = self.job.recipe, loading_notes(model)
        records = recipe.cuda_graph is True and self.job.device.type in RECORDERS
        if records and not recipe.records_update:
            texts.append("gradients were recorded as a graph, and the optimizer's steps launched")
        said = [Note.of(NoteKind.OTHER, text=text) for text in texts]
        known = recipe.model.normalisation(in_channels=channels)
        return result.model_copy(update={"note": (*result.note, *said), "normalisation": known})

    def state(self) -> ProgressState:
        return ProgressState(
            steps=self.steps,
            samples=self.counts.samples,
            init_s=self.time.init_s,
            ahead_s=self.time.ahead_s,
            evaluations=tuple(self.evaluations),
            losses=tuple(self.losses),
            phases=tuple(PhaseState.of(*item) for item in self.time.phases.items()),
            eval_batch_size=self.evaluator.batch_size,
            loss_samples=self.counts.loss_samples,
            flop=self.counts.flop,
            waited_s=self.time.waits.waited_s,
            clocks=self.time.clock.clocks(),
            seen=self.sharing.seen_so_far(),
            **self.readings.state(),
        )

    def resume(self, state: ProgressState, *, loss_sum: Tensor) -> None:
        """Resumes where another process was, with its sum of losses since the last evaluation."""
        counts, time = self.counts, self.time
        counts.steps, counts.samples = state.steps, state.samples
        counts.loss_samples, counts.flop = state.loss_samples, state.flop
        counts.loss_sum.copy_(loss_sum)
        time.init_s, time.ahead_s = state.init_s, state.ahead_s
        time.waits.waited_s = state.waited_s
        time.clock.resume(state.clocks)
        self.evaluations, self.losses = list(state.evaluations), list(state.losses)
        self.evaluator.batch_size = state.eval_batch_size
        self.readings.resume(state)
        self.sharing.resume(state.seen)

    def _is_last(self) -> bool:
        return self.steps == self.total_steps

    def _is_over_time(self) -> bool:
        return self.time.train_s > self.workload.max_train_s

    def _time_to_target(self) -> float | None:
        return self.workload.time_to_target(
            self.evaluations, num_train=self.num_train, at_end=self._is_last()
        )
