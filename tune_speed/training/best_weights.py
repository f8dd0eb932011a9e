"""The weights of a trial that may be the best so far, as a file in its study's folder."""

import io
import logging
import math
from pathlib import Path

import torch
from torch import Tensor, nn

from tune_speed.core.records import RunResult
from tune_speed.runtime.atomic_file import write_atomically
from tune_speed.training.trial import KeepWeights

_log = logging.getLogger(__name__)


def save_weights(keep: KeepWeights | None, run: RunResult, model: nn.Module) -> None:
    """Writes the weights of a run that met the target as soon as the best so far, or sooner.

    Does nothing where the study's folder is not visible: on another node without shared storage.
    """
    if keep is None or run.time_to_target_s is None:
        return
    path, at_most_s = Path(keep.file), math.inf if keep.at_most_s is None else keep.at_most_s
    if run.time_to_target_s > at_most_s or not path.parent.is_dir():
        return
    try:
        # torch's own writing to a full disk is no OSError.
        buffer = io.BytesIO()
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, buffer)
        with write_atomically(path) as file:
            file.write(buffer.getvalue())
    # No trial fails of it: what cannot be written is left out, and missed at the search's end.
    except (OSError, RuntimeError, MemoryError):
        _log.warning("the weights were not saved in %s", path, exc_info=True)


def load_weights(path: Path) -> dict[str, Tensor]:
    """Returns what `save_weights` wrote, on the CPU; nothing in the file is run."""
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights
