"""The training clock of a run that shared its device: a sum over phases, not what passed."""

from collections.abc import Iterable
from dataclasses import dataclass

from tune_speed.core.records import StepTime


@dataclass
class Phase:
    """A stretch of a run whose steps have one shape, hence one throughput key."""

    step_time: StepTime
    samples_per_step: int
    """Effective batch size."""
    samples: int = 0
    """Training samples seen in it so far."""


def isolated_train_s(phases: Iterable[Phase], *, other_s: float = 0.0) -> float:
    """Returns Σ (samples / samples per step) · isolated seconds of a step, over phases, + other.

    A ragged step at an epoch's end counts by its samples, as it did when steps were timed.

    Args:
        phases: those that ran, the present one included.
        other_s: timed spans that are no steps, such as statistics of the data for the first weights
            [s].
    """
    return other_s + sum(p.samples / p.samples_per_step * p.step_time.step_s for p in phases)
