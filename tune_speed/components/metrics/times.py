"""How long a run took: the whole of it, its training, an epoch, and the way to the target."""

from tune_speed.components.metrics.base import Metric
from tune_speed.core.records import RunResult


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


TIMES = {
    "execution_s": Metric(
        about="Wall-clock time of the whole run, start-up and evaluations included.",
        unit="s",
        source="S0, Table I",
        of_run=execution_s,
    ),
    "train_s": Metric(
        about="Training clock: loading, augmentation, forward, backward and optimizer; no"
        " evaluations, no start-up.",
        unit="s",
        source="README, The clock",
        of_run=train_s,
    ),
    "time_to_target_s": Metric(
        about="Training clock at which the target held; a miss has none.",
        unit="s",
        source="Coleman et al. 2017, DAWNBench",
        of_run=lambda run: run.time_to_target_s,
    ),
    "amortised_time_to_target_s": Metric(
        about="Time to target without what went into the weights that the first step starts from,"
        " such as pretraining; given where there was such a thing.",
        unit="s",
        source="S4, Pretraining",
        of_run=amortised_s,
    ),
    "epoch_s": Metric(
        about="Training clock of one pass over the training part, the mean over the run.",
        unit="s",
        source="S1, Tables I to IV",
        of_run=epoch_s,
    ),
}
