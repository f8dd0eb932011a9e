"""Every figure that the source documents report, or that is reported here: one file a family.

Those of a run come from what its record stores; the others are functions of numbers. Importing
this package imports no torch.
"""

from tune_speed.components.metrics.base import Metric
from tune_speed.components.metrics.convergence import CONVERGENCE
from tune_speed.components.metrics.memory import MEMORY
from tune_speed.components.metrics.repeats import REPEATS
from tune_speed.components.metrics.scores import SCORES
from tune_speed.components.metrics.speed_up import SPEED_UPS
from tune_speed.components.metrics.times import TIMES
from tune_speed.components.metrics.work import WORK

METRICS: dict[str, Metric] = {
    **SCORES,
    **TIMES,
    **CONVERGENCE,
    **WORK,
    **MEMORY,
    **SPEED_UPS,
    **REPEATS,
}
"""Every metric by its name."""

MEASURED_TARGETS = ("accuracy", "macro_f1", "micro_f1", "loss")
"""Metrics of every evaluation."""


def target_metrics() -> tuple[str, ...]:
    """Returns the metrics that a workload's target may name, those of plugins included."""
    more = (name for name, metric in METRICS.items() if metric.of_logits is not None)
    return (*MEASURED_TARGETS, *more)


__all__ = ["METRICS", "Metric", "target_metrics"]
