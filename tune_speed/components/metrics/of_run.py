"""Figures of one run, from what its record stores; None where the record lacks it."""

from collections.abc import Callable, Mapping

from tune_speed.components.metrics.convergence import epochs_of_run
from tune_speed.core.records import Evaluation, RunResult


def execution_s(run: RunResult) -> float | None:
    """Returns the wall-clock time of the whole run [s], start-up and evaluations included."""
    return run.clocks.wall_s or None


def train_s(run: RunResult) -> float | None:
    """Returns the training clock at the end [s]."""
    return run.clocks.train_s or None


def amortised_s(run: RunResult) -> float | None:
    """Returns the time to target where the first step's weights are at hand [s]."""
    return run.amortised_time_to_target_s if run.init_s else None


def epoch_s(run: RunResult) -> float | None:
    """Returns the training clock over the passes done, which need not be whole [s]."""
    epochs = run.final.epoch if run.final else 0.0
    return run.clocks.train_s / epochs if epochs else None


def peak_memory_frac(run: RunResult) -> float | None:
    """Returns the peak as a share of the run's limit; above 1 where nothing enforces the limit."""
    if run.peak_memory_gib is None or not run.memory_limit_gib:
        return None
    return run.peak_memory_gib / run.memory_limit_gib


def _final(read: Callable[[Evaluation], float | None]) -> Callable[[RunResult], float | None]:
    """Returns a function that reads a run's last evaluation."""
    return lambda run: None if run.final is None else read(run.final)


OF_RUN: Mapping[str, Callable[[RunResult], float | None]] = {
    "accuracy": _final(lambda evaluation: evaluation.accuracy),
    "macro_f1": _final(lambda evaluation: evaluation.macro_f1),
    "micro_f1": _final(lambda evaluation: evaluation.micro_f1),
    "top5_accuracy": _final(lambda evaluation: evaluation.values.get("top5_accuracy")),
    "loss": _final(lambda evaluation: evaluation.loss),
    "train_loss": _final(lambda evaluation: evaluation.train_loss),
    "execution_s": execution_s,
    "train_s": train_s,
    "time_to_target_s": lambda run: run.time_to_target_s,
    "amortised_time_to_target_s": amortised_s,
    "epoch_s": epoch_s,
    "epochs_to_convergence": epochs_of_run,
    "images_per_s": lambda run: run.images_per_s,
    "gpu_utilisation": lambda run: run.gpu_utilisation,
    "fed_ratio": lambda run: run.fed_ratio,
    "peak_memory_gib": lambda run: run.peak_memory_gib,
    "peak_memory_frac": peak_memory_frac,
}
"""Each metric of a run by its name in `METRICS`."""
