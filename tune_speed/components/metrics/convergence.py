"""After how many epochs training on is not worth it."""

from collections.abc import Sequence
from typing import NamedTuple

from tune_speed.core.records import RunResult

# Accuracy that counts as a rise; S1 says `significantly`, without a figure.
LEAST_RISE = 0.005
# Epochs in which it may come.
FURTHER_EPOCHS = 5.0


class Point(NamedTuple):
    """One evaluation."""

    epoch: float
    accuracy: float


def epochs_to_convergence(
    curve: Sequence[Point],
    *,
    least_rise: float = LEAST_RISE,
    further_epochs: float = FURTHER_EPOCHS,
) -> float | None:
    """Returns the first epoch after which accuracy rises by less than `least_rise`.

    Within `further_epochs` more, that is; a run that ends sooner after a point says nothing on it.
    None: the run did not last until convergence, or none of it shows.

    Args:
        curve: evaluations, by ascending epoch.
        least_rise: accuracy, in (0, 1].
        further_epochs: how far to look ahead, above 0.

    Source: S1, section 4 (epochs until accuracy "did not significantly improve").
    """
    for point in curve:
        horizon = point.epoch + further_epochs
        if curve[-1].epoch < horizon:
            return None
        later = [p.accuracy for p in curve if point.epoch < p.epoch <= horizon]
        if later and max(later) < point.accuracy + least_rise:
            return point.epoch
    return None


def epochs_of_run(run: RunResult) -> float | None:
    """Returns the epochs to convergence of a run, by the defaults; None without an accuracy."""
    return epochs_to_convergence(
        [Point(e.epoch, e.accuracy) for e in run.evaluations if e.accuracy is not None]
    )
