"""How far a run is: samples seen, losses, evaluations, and whether it has ended."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Self

import torch
from torch import Tensor, nn

from tune_speed.components.metrics import METRICS
from tune_speed.components.metrics.work import gpu_utilisation
from tune_speed.components.speedups.base import Averager, Shape
from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Clocks, Evaluation, RunResult, Status, StepTime
from tune_speed.core.words import StopKind, StopReason
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import HeldImages, Resident, eval_batches, hold
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.device import (
    device_memory_gib,
    device_of,
    is_out_of_memory,
    peak_memory_gib,
    release_memory,
)
from tune_speed.runtime.pooled_times import timing_of
from tune_speed.runtime.process import HeldUp, cpu_wait_s
from tune_speed.runtime.sharing import CotenantHistory, Sharing
from tune_speed.runtime.step_timer import BLOCK_S, take_all
from tune_speed.runtime.training_clock import Phase, Waits, fed_ratio, isolated_train_s
from tune_speed.training.build import Job, Part
from tune_speed.training.evaluate import Scores, evaluate
from tune_speed.training.step.gradient import AUTOCAST_DTYPES
from tune_speed.training.step.step import accumulation_of, micro_batch_of
from tune_speed.training.trial import run_result


class PhaseState(Config):
    """What the steps of one shape take, and how many samples went through them."""

    shape: Shape
    step_time: StepTime
    samples_per_step: int
    samples: int

    @classmethod
    def of(cls, shape: Shape, phase: Phase) -> Self:
        """Returns the phase as a checkpoint stores it."""
        return cls(
            shape=shape,
            step_time=phase.step_time,
            samples_per_step=phase.samples_per_step,
            samples=phase.samples,
        )


class ProgressState(Config):
    """How far a run is, as a checkpoint stores it: all of `Progress` but what is set up again."""

    steps: int
    samples: int
    init_s: float
    ahead_s: float = 0.0
    """By how much the clock ran ahead of `init_s` before the first step."""
    evaluations: tuple[Evaluation, ...]
    losses: tuple[float, ...]
    phases: tuple[PhaseState, ...]
    eval_batch_size: int
    loss_samples: int
    flop: float | None = None
    waited_s: float
    """For batches."""
    cpu_wait_s: float | None
    utilisations: tuple[float, ...]
    peak_memory_gib: float
    device_memory_gib: float | None = None
    clocks: Clocks
    seen: CotenantHistory

    def phases_by_shape(self) -> dict[Shape, Phase]:
        """Returns the phases with which the run continues; none: the clock counts."""
        return {
            each.shape: Phase(each.step_time, each.samples_per_step, each.samples)
            for each in self.phases
        }


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
        self.workload, self.recipe, self.splits = job.workload, job.recipe, job.splits
        self.seed, self.device, self.ranks = job.seed, job.device, job.ranks
        self.evaluated_on, self.step_schedule = job.evaluated_on, job.step_schedule
        self.model, self.clock, self.sharing, self.phases = model, clock, sharing, phases
        self.flop_per_sample = flop_per_sample
        self.averager: Averager | None = None
        self.figures: Callable[[], dict[str, float]] = dict
        self.waits = Waits()
        self.num_train = len(self.splits.train.labels)
        self.grid = self.workload.grid(num_train=self.num_train)
        self.total_steps = sum(num_steps for _, num_steps in self.step_schedule)
        self.steps = self.samples = 0
        self.init_s = self._ahead_s = 0.0
        self.evaluations: list[Evaluation] = []
        self.losses: list[float] = []
        """Validation losses so far, where the schedule follows them; all are finite, as a run with
        another one has ended."""
        # What a run is until it has ended by itself.
        self.status = Status.CAPPED
        num_validation = len(self.splits.validation.labels)
        self._eval_batch_size = min(self.workload.eval_batch_size, num_validation)
        self.loss_sum = torch.zeros((), device=self.device)
        """Of the training, since the last evaluation; on the device."""
        self._loss_samples = 0
        self._flop: float | None = 0.0
        self._held = dict[Part, HeldImages]()
        self._waited_before_s, self._held_up = cpu_wait_s(), HeldUp(self.device)
        self._utilisations = list[float]()
        self._peak_gib = 0.0
        self._device_gib: float | None = None

    def take_before(self, steps: Iterator[object], num_steps: int) -> None:
        """Takes steps of a short training, on the clock: by isolated time, as the run's own."""
        if self.phases:
            block_s, turnstile = BLOCK_S[self.device.type], self.sharing.turnstile
            self._ahead_s += take_all(
                steps, num_steps, block_s=block_s, clock=self.clock, turnstile=turnstile
            )
            return
        for _ in islice(steps, num_steps):
            self.clock.let_others_measure()

    def begin(self) -> None:
        """Marks the first step: what is on the clock is what came before it."""
        self.init_s = self.clock.elapsed("train_s") - self._ahead_s

    def advance(self, shape: Shape, num_samples: int, loss_sum: Tensor, num_learned: int) -> None:
        """Counts one optimizer step; the loss stays on the device until the next evaluation.

        It went through `num_samples`, and learned from `num_learned`, whose losses sum to
        `loss_sum`.
        """
        self.steps += 1
        self.samples += num_samples
        if self.phases:
            self.phases[shape].samples += num_samples
        self._loss_samples += num_learned
        flop = self.flop_per_sample[shape]
        self._flop = None if self._flop is None or flop is None else self._flop + flop * num_samples
        self.loss_sum += loss_sum

    @property
    def evaluated_model(self) -> nn.Module:
        """The model, or the average of its weights where there is one."""
        return self.model if self.averager is None else self.averager.model

    @property
    def train_s(self) -> float:
        """The training clock [s]: steps times isolated step time where that is known."""
        if self.phases:
            return isolated_train_s(self.phases.values(), other_s=self.init_s)
        return self.clock.elapsed("train_s")

    def is_due(self) -> bool:
        """Whether to evaluate: a grid point was passed, the run ends, or its time is over."""
        last_seen = self.evaluations[-1].samples
        passed_grid = self.samples // self.grid > last_seen // self.grid
        is_over_time = self.ranks.lately(self._is_over_time())
        return passed_grid or self._is_last() or is_over_time

    def evaluate(self) -> None:
        """Adds an evaluation of the model as it is: rank 0's."""
        train_loss = self._take_train_loss()
        mine = self._evaluation(train_loss) if self.ranks.is_first else None
        evaluation, self.losses = self.ranks.broadcast((mine, self.losses))
        assert evaluation is not None
        self.evaluations.append(evaluation)

    def _evaluation(self, train_loss: float | None) -> Evaluation:
        """Returns the evaluation of the model as it is, and follows its loss."""
        self.sharing.look()
        if (utilisation := gpu_utilisation(self.device)) is not None and self.steps:
            self._utilisations.append(utilisation)
        if (device_gib := device_memory_gib(self.device)) is not None:
            self._device_gib = max(device_gib, self._device_gib or 0.0)
        with self.clock.span("eval_s"):
            scores = self._scores(self.evaluated_on)
            if self.recipe.lr_schedule.follows_loss:
                # The schedule follows the validation part, whatever is evaluated.
                on_test = self.evaluated_on != "validation"
                followed = self._scores("validation") if on_test else scores
                if followed.loss is not None:
                    self.losses.append(followed.loss)
        own = {} if scores.value is None else {self.workload.target.metric: scores.value}
        return Evaluation(
            step=self.steps,
            samples=self.samples,
            epoch=self.samples / self.num_train,
            train_s=self.train_s,
            accuracy=scores.accuracy,
            macro_f1=scores.macro_f1,
            micro_f1=scores.micro_f1,
            loss=scores.loss,
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
        """Returns the run's result so far."""
        train_s, passed_s = self.train_s, self.clock.elapsed("train_s")
        # Since the first step.
        wall_s = max(0.0, passed_s - self.init_s - self._ahead_s)
        step_times = tuple(phase.step_time for phase in self.phases.values())
        isolated = {"timing": timing_of(step_times), "note": ()} if self.phases else {}
        # The mean of a step, over the whole run where it is known beforehand.
        steps_s, steps = train_s - self.init_s, self.steps
        if self.phases:
            per_shape = ((n, self.phases[shape].step_time) for shape, n in self.step_schedule)
            steps_s, steps = sum(n * each.step_s for n, each in per_shape), self.total_steps
        return run_result(
            self.status,
            evaluations=self.evaluations,
            clock=self.clock,
            sharing=self.sharing,
            train_s=train_s,
            steps=self.steps,
            samples=self.samples,
            flop=self._flop,
            seed=self.seed,
            stop_reason=stop_reason or StopReason(),
            time_to_target_s=self._time_to_target() if self.status == Status.REACHED else None,
            step_time_ms=1000 * steps_s / steps if steps else None,
            fed_ratio=fed_ratio(waited_s=min(self.waits.waited_s, wall_s), wall_s=wall_s),
            gpu_utilisation=statistics.fmean(self._utilisations) if self._utilisations else None,
            peak_memory_gib=self._peak_memory_gib(),
            device_memory_gib=self._device_gib,
            batch_size=micro_batch_of(self.recipe),
            accumulation_steps=accumulation_of(self.recipe),
            device=device_of(self.device, self.recipe.devices),
            step_times=step_times,
            windows=tuple(self.sharing.windows),
            shape_steps=self._shape_steps(),
            init_s=self.init_s,
            slowdown=passed_s / train_s if self.phases and train_s else None,
            held_up_frac=self._held_up.frac,
            cpu_wait_s=cpu_wait_s(since=self._waited_before_s),
            **isolated,
        )

    def _shape_steps(self) -> tuple[tuple[int, int], ...]:
        numbers = {shape: number for number, shape in enumerate(self.phases)}
        return tuple((numbers[shape], n) for shape, n in self.step_schedule if self.phases)

    def state(self) -> ProgressState:
        """Returns all that another process needs to resume the run."""
        return ProgressState(
            steps=self.steps,
            samples=self.samples,
            init_s=self.init_s,
            ahead_s=self._ahead_s,
            evaluations=tuple(self.evaluations),
            losses=tuple(self.losses),
            phases=tuple(PhaseState.of(*item) for item in self.phases.items()),
            eval_batch_size=self._eval_batch_size,
            loss_samples=self._loss_samples,
            flop=self._flop,
            waited_s=self.waits.waited_s,
            cpu_wait_s=cpu_wait_s(since=self._waited_before_s),
            utilisations=tuple(self._utilisations),
            peak_memory_gib=self._peak_memory_gib(),
            device_memory_gib=self._device_gib,
            clocks=self.clock.clocks(),
            seen=self.sharing.seen_so_far(),
        )

    def resume(self, state: ProgressState, *, loss_sum: Tensor) -> None:
        """Resumes where another process was; its phases were given when this was made.

        `loss_sum` is the other's sum of training losses since the last evaluation.
        """
        self.steps, self.samples = state.steps, state.samples
        self.init_s, self._ahead_s = state.init_s, state.ahead_s
        self.evaluations, self.losses = list(state.evaluations), list(state.losses)
        self._eval_batch_size = state.eval_batch_size
        self._loss_samples, self._flop = state.loss_samples, state.flop
        self.loss_sum.copy_(loss_sum)
        self.waits.waited_s = state.waited_s
        self._utilisations = list(state.utilisations)
        self._peak_gib = state.peak_memory_gib
        self._device_gib = state.device_memory_gib
        self.clock.resume(state.clocks)
        self.sharing.resume(state.seen)
        if self._waited_before_s is not None:
            before_s = state.cpu_wait_s
            self._waited_before_s = None if before_s is None else self._waited_before_s - before_s

    def _peak_memory_gib(self) -> float:
        return max(self._peak_gib, peak_memory_gib(self.device))

    def _is_last(self) -> bool:
        return self.steps == self.total_steps

    def _is_over_time(self) -> bool:
        return self.train_s > self.workload.max_train_s

    def _time_to_target(self) -> float | None:
        return self.workload.time_to_target(
            self.evaluations, num_train=self.num_train, at_end=self._is_last()
        )

    def _take_train_loss(self) -> float | None:
        """Returns the mean loss since the last evaluation; None if there is none or not finite."""
        if self._loss_samples == 0:
            return None
        mean = float(self.ranks.sum(self.loss_sum)) / self._loss_samples
        self.loss_sum.zero_()
        self._loss_samples = 0
        return mean if math.isfinite(mean) else None

    def _scores(self, part: Part) -> Scores:
        """Returns the model's scores; in smaller batches, from now on, where memory runs out."""
        while True:
            try:
                return self._scores_by(self._eval_batch_size, part)
            except Exception as error:
                if not is_out_of_memory(error) or self._eval_batch_size == 1:
                    raise
            # Outside the handler: its traceback would keep the batch's tensors alive.
            release_memory(self.device)
            self._eval_batch_size = math.ceil(self._eval_batch_size / 2)

    def _scores_by(self, batch_size: int, part: Part) -> Scores:
        images: Images | HeldImages
        images = self.splits.validation if part == "validation" else self.splits.test
        # Where the training part is on the device, this one is too from its first evaluation on.
        if isinstance(self.recipe.loader, Resident):
            if part not in self._held:
                self._held[part] = hold(images, self.device)
            images = self._held[part]
        batches = eval_batches(
            images,
            mean=self.splits.mean,
            std=self.splits.std,
            batch_size=batch_size,
            device=self.device,
            channels_last=self.recipe.is_channels_last,
        )

        def one_by_one() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in batches:
                self.clock.let_others_measure()
                yield batch

        # Of accuracy, F1 and loss every evaluation has values by itself.
        metric = METRICS.get(self.workload.target.metric)
        return evaluate(
            self.evaluated_model,
            one_by_one(),
            device=self.device,
            autocast_dtype=AUTOCAST_DTYPES[self.recipe.precision],
            predict=self.recipe.speedups.predict,
            of_logits=None if metric is None else metric.of_logits,
        )
