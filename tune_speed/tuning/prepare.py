"""A workload whose data are at hand: its identity and sizes, and whether its target is worth it."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.core.targets import Target
from tune_speed.data.cache import prepare
from tune_speed.data.split import make_splits
from tune_speed.training.workload import Workload


class PreparedWorkload(NamedTuple):
    """Facts about a workload that need its data."""

    workload_hash: str
    data_hash: str
    image_shape: tuple[int, ...]
    """(H, W, C)."""
    num_classes: int
    num_train: int


def prepare_workload(
    workload: Workload, *, download: bool, on_progress: Callable[[int, int], None]
) -> PreparedWorkload:
    """Decodes the workload's data into this node's cache; returns what it needs the data for.

    Raises: DataError; ConfigError if a guess that never looks at the image meets the target.
    """
    data = prepare(workload.dataset, download=download, on_progress=on_progress)
    splits = make_splits(data, workload.split)
    _refuse_guess(workload.target, splits.validation.labels, num_classes=splits.num_classes)
    return PreparedWorkload(
        workload_hash=workload.identity(data_hash=data.data_hash),
        data_hash=data.data_hash,
        image_shape=splits.train.pixels.shape[1:],
        num_classes=splits.num_classes,
        num_train=len(splits.train.labels),
    )


def _refuse_guess(target: Target, labels: npt.NDArray[np.int64], *, num_classes: int) -> None:
    """Raises: ConfigError if always guessing the most frequent class meets the target."""
    share = float(np.bincount(labels).max() / len(labels))
    macro_f1 = 2 * share / (1 + share) / num_classes
    guess = {"accuracy": share, "micro_f1": share, "macro_f1": macro_f1}.get(target.metric)
    if guess is None or target.value > guess:
        return
    problem = Problem(
        path="workload.target.value",
        must=f"must exceed {guess:.4f}, the {target.metric} of always guessing the most frequent"
        " class",
        given=f"{target.value:g}",
        hint="Such a target is met before training; choose a higher one.",
    )
    raise ConfigError(problems=(problem,))
