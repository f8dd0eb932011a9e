"""How far a run is, in the form in which a checkpoint stores it."""

from typing import Self

from tune_speed.components.speedups.base import Shape
from tune_speed.core.config import Config
from tune_speed.core.records import Clocks, Evaluation, StepTime
from tune_speed.runtime.sharing import CotenantHistory
from tune_speed.runtime.training_clock import Phase


class PhaseState(Config):
    """What the steps of one shape take, and how many samples went through them."""

    shape: tuple[int, int, int, float, int]
    step_time: StepTime
    samples_per_step: int
    samples: int

    @classmethod
    def of(cls, shape: Shape, phase: Phase) -> Self:
        """Returns the phase as a checkpoint stores it."""
        return cls(
            shape=(shape.height, shape.width, shape.growth, shape.kept_frac, shape.stage),
            step_time=phase.step_time,
            samples_per_step=phase.samples_per_step,
            samples=phase.samples,
        )


class ProgressState(Config):
    """How far a run is, as a checkpoint stores it: all of `Progress` but what is set up again."""

    steps: int
    samples: int
    init_s: float
    evaluations: tuple[Evaluation, ...]
    losses: tuple[float, ...]
    phases: tuple[PhaseState, ...]
    eval_batch_size: int
    loss_samples: int
    waited_s: float
    """For batches."""
    cpu_wait_s: float | None
    utilisations: tuple[float, ...]
    peak_memory_gib: float
    clocks: Clocks
    seen: CotenantHistory

    def phases_by_shape(self) -> dict[Shape, Phase]:
        """Returns the phases with which the run continues; none: the clock counts."""
        return {
            Shape(*each.shape): Phase(each.step_time, each.samples_per_step, each.samples)
            for each in self.phases
        }
