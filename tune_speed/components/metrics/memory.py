"""Memory: the peak, and its share of what the run may use."""

from tune_speed.components.metrics.base import Metric
from tune_speed.core.records import RunResult


def peak_memory_frac(run: RunResult) -> float | None:
    """Returns the peak as a share of the run's limit; above 1 where nothing enforces the limit."""
    if run.peak_memory_gib is None or not run.memory_limit_gib:
        return None
    return run.peak_memory_gib / run.memory_limit_gib


MEMORY = {
    "peak_memory_gib": Metric(
        about="Peak of the device's allocator (CUDA), or of the process's resident memory (CPU).",
        unit="GiB",
        source="S1, Tables I to IV, by nvidia-smi, which also counts context and cache",
        of_run=lambda run: run.peak_memory_gib,
    ),
    "peak_memory_frac": Metric(
        about="Peak memory as a share of what the run may use.",
        unit="1",
        source="S1, Tables I to IV",
        of_run=peak_memory_frac,
    ),
}
