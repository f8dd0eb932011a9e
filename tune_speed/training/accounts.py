"""What a run counts: its training clock, its samples and losses, and what its hardware says."""

import math
import statistics
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Self

import torch
from torch import Tensor

from tune_speed.components.metrics.device_counters import gpu_utilisation
from tune_speed.components.speedups.base import Shape
from tune_speed.core.config import Config
from tune_speed.core.records import Clocks, Evaluation, StepTime
from tune_speed.runtime.clock import Clock, Phase, Waits, fed_ratio, isolated_train_s
from tune_speed.runtime.device import device_memory_gib, peak_memory_gib
from tune_speed.runtime.pooled_times import timing_of
from tune_speed.runtime.process import HeldUp, cpu_wait_s
from tune_speed.runtime.sharing import CotenantHistory, Sharing
from tune_speed.runtime.step_timer import BLOCK_S, take_all
from tune_speed.training.build import Job
from tune_speed.training.ranks import Ranks


class PhaseState(Config):
    """What the steps of one shape take, and how many samples went through them."""

    shape: Shape
    step_time: StepTime
    samples_per_step: int
    samples: int

    @classmethod
    def of(cls, shape: Shape, phase: Phase) -> Self:
        return cls(shape=shape, **vars(phase))


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
        phases = [(p.shape, Phase(p.step_time, p.samples_per_step, p.samples)) for p in self.phases]
        return dict(phases)


class RunTime:
    """The training clock of a run: what passed, or steps times isolated step time if known."""

    def __init__(
        self, job: Job, clock: Clock, sharing: Sharing, phases: Mapping[Shape, Phase]
    ) -> None:
        """Begins before the first step; where `phases` is empty, the clock is what counts."""
        self._job, self.clock, self._sharing, self.phases = job, clock, sharing, phases
        self.waits = Waits()
        self.init_s = 0.0
        """On the clock before the first step [s]."""
        self.ahead_s = 0.0
        """By how much the clock ran ahead of `init_s` before the first step [s]."""

    def take_before(self, steps: Iterator[object], num_steps: int) -> None:
        """Takes steps of a short training, on the clock: by isolated time, as the run's own."""
        if self.phases:
            block_s, turnstile = BLOCK_S[self._job.device.type], self._sharing.turnstile
            self.ahead_s += take_all(
                steps, num_steps, block_s=block_s, clock=self.clock, turnstile=turnstile
            )
            return
        for _ in islice(steps, num_steps):
            self.clock.let_others_measure()

    def begin(self) -> None:
        """Marks the first step: what is on the clock is what came before it."""
        self.init_s = self.clock.elapsed("train_s") - self.ahead_s

    @property
    def train_s(self) -> float:
        if self.phases:
            return isolated_train_s(self.phases.values(), other_s=self.init_s)
        return self.clock.elapsed("train_s")

    def figures(self, num_steps: int) -> dict[str, Any]:
        """Returns the fields of a run's result that follow from its clock after so many steps."""
        train_s, passed_s = self.train_s, self.clock.elapsed("train_s")
        # Since the first step.
        wall_s = max(0.0, passed_s - self.init_s - self.ahead_s)
        step_times = tuple(phase.step_time for phase in self.phases.values())
        isolated = {"timing": timing_of(step_times), "note": ()} if self.phases else {}
        schedule = self._job.step_schedule
        # The mean of a step, over the whole run where it is known beforehand.
        steps_s, steps = train_s - self.init_s, num_steps
        if self.phases:
            steps_s = sum(n * self.phases[shape].step_time.step_s for shape, n in schedule)
            steps = sum(n for _, n in schedule)
        numbers = {shape: number for number, shape in enumerate(self.phases)}
        return {
            "train_s": train_s,
            "step_time_ms": 1000 * steps_s / steps if steps else None,
            "fed_ratio": fed_ratio(waited_s=min(self.waits.waited_s, wall_s), wall_s=wall_s),
            "step_times": step_times,
            "shape_steps": tuple((numbers[shape], n) for shape, n in schedule if self.phases),
            "init_s": self.init_s,
            "slowdown": passed_s / train_s if self.phases and train_s else None,
            **isolated,
        }


class Counts:
    """Steps, samples, operations, and the training losses since the last evaluation."""

    def __init__(self, device: torch.device, flop_per_sample: Mapping[Shape, float | None]) -> None:
        self.steps = self.samples = 0
        self.flop: float | None = 0.0
        self.loss_sum = torch.zeros((), device=device)
        """Stays on the device until the next evaluation."""
        self.loss_samples = 0
        self._flop_per_sample = flop_per_sample

    def advance(self, shape: Shape, num_samples: int, loss_sum: Tensor, num_learned: int) -> None:
        """Counts a step through `num_samples`; losses of its `num_learned` sum to `loss_sum`."""
        self.steps += 1
        self.samples += num_samples
        self.loss_samples += num_learned
        flop = self._flop_per_sample[shape]
        self.flop = None if self.flop is None or flop is None else self.flop + flop * num_samples
        self.loss_sum += loss_sum

    def take_loss(self, ranks: Ranks) -> float | None:
        """Returns the mean loss since the last evaluation; None if there is none or not finite."""
        if self.loss_samples == 0:
            return None
        mean = float(ranks.sum(self.loss_sum)) / self.loss_samples
        self.loss_sum.zero_()
        self.loss_samples = 0
        return mean if math.isfinite(mean) else None


class Readings:
    """What the hardware says of a run: memory, use of the GPU, waits for the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waited_before_s, self._held_up = cpu_wait_s(), HeldUp(device)
        self._utilisations = list[float]()
        self._peak_gib = 0.0
        self._device_gib: float | None = None

    def read(self, *, has_trained: bool) -> None:
        """Reads what is only there now; called at each evaluation."""
        if (utilisation := gpu_utilisation(self._device)) is not None and has_trained:
            self._utilisations.append(utilisation)
        if (device_gib := device_memory_gib(self._device)) is not None:
            self._device_gib = max(device_gib, self._device_gib or 0.0)

    def held_up_frac(self) -> float:
        return self._held_up.frac()

    def figures(self) -> dict[str, Any]:
        used = self._utilisations
        return {**self._kept(), "gpu_utilisation": statistics.fmean(used) if used else None}

    def state(self) -> dict[str, Any]:
        """Returns its fields of `ProgressState`."""
        return {**self._kept(), "utilisations": tuple(self._utilisations)}

    def _kept(self) -> dict[str, float | None]:
        return {
            "cpu_wait_s": cpu_wait_s(since=self._waited_before_s),
            "peak_memory_gib": max(self._peak_gib, peak_memory_gib(self._device)),
            "device_memory_gib": self._device_gib,
        }

    def resume(self, state: ProgressState) -> None:
        self._utilisations = list(state.utilisations)
        self._peak_gib = state.peak_memory_gib
        self._device_gib = state.device_memory_gib
        if self._waited_before_s is not None:
            before_s = state.cpu_wait_s
            self._waited_before_s = None if before_s is None else self._waited_before_s - before_s
