"""What every metric states of itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tune_speed.core.records import RunResult

OfLogits = Callable[[Any, Any], float]
"""From all logits (N, K) and labels (N,) of the evaluated part, tensors of torch, to a metric."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A figure that `tune-speed list metrics` names, and `tune-speed show` where a run has it."""

    about: str
    """One line: what it is and, where it is not of a run, what shows it."""
    unit: str
    """`1` for a ratio or share."""
    source: str
    of_run: Callable[[RunResult], float | None] | None = None
    """Returns it for a run; None where the record lacks it. No function: not of a single run."""
    of_logits: OfLogits | None = None
    """Returns it for all logits (N, K), float32, and labels (N,) of the part that is evaluated,
    both on the run's device. With this function the metric may be a workload's target."""
