"""The weights of a trial that may be the best so far, and its network as others can use it.

The network's weights are what the trial's last evaluation looked at (the average's, where weights
were averaged). All that the evaluation did besides is inside as well: normalisation, precision, and
the views of test-time augmentation. So its accuracy is the record's.
"""

import io
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.models.networks.libraries import take_state
from tune_speed.core.records import RunResult, TrialRecord
from tune_speed.data.augmentation.crops import centred
from tune_speed.data.base import Images, whole_of
from tune_speed.data.loaders.resident import View
from tune_speed.data.split import Splits
from tune_speed.runtime.atomic_file import write_atomically
from tune_speed.training.build import build_model, step_schedule_of, view_of
from tune_speed.training.evaluate import evaluate
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import AUTOCAST_DTYPES
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


class FinishedModel(nn.Module):
    """Images as uint8 (N, C, H, W), 0 to 255, in; float32 logits (N, num_classes) out."""

    scale: Tensor
    shift: Tensor

    def __init__(self, network: nn.Module, recipe: Recipe, view: View) -> None:
        """Wraps a trained network, which is shown whole images as evaluation shows them."""
        super().__init__()
        self._side, self._crop_pct = view.image_size, view.crop_pct
        self.network = network
        self._predict = recipe.speedups.predict
        self._dtype = AUTOCAST_DTYPES[recipe.precision]
        self._format = torch.channels_last if recipe.is_channels_last else torch.contiguous_format
        # As `image_ops.Normalizer` computes them, so that not a bit differs.
        means, stds = torch.tensor([view.mean, view.std], dtype=torch.float64).view(2, 1, -1, 1, 1)
        self.register_buffer("scale", (1 / (255 * stds)).float())
        self.register_buffer("shift", (means / stds).float())

    def forward(self, pixels: Tensor) -> Tensor:
        images = self._shown(pixels).float() * self.scale - self.shift
        images = images.contiguous(memory_format=self._format)
        if self._dtype is None:
            return self._predict(self.network, images).float()
        with torch.autocast(images.device.type, self._dtype):
            logits = self._predict(self.network, images)
        return logits.float()

    def _shown(self, pixels: Tensor) -> Tensor:
        """Returns the centred window of images (N, C, H, W) that evaluation shows, at its size."""
        box = height, width = (int(pixels.shape[2]), int(pixels.shape[3]))
        size = (self._side or height, self._side or width)
        if size == box and self._crop_pct == 1:
            return pixels
        whole = np.array([[height, width]])
        top, left, side, _ = centred(whole, crop_pct=self._crop_pct)[:, 0].tolist()
        window = pixels[:, :, top : top + side, left : left + side]
        if size == (side, side):
            return window
        # The kernel for uint8, which evaluations on a CPU call, is there alone.
        if pixels.device.type == "cpu":
            return functional.interpolate(window, size, mode="bilinear", antialias=True)
        resized = functional.interpolate(window.float(), size, mode="bilinear", antialias=True)
        return resized.round().clamp(0, 255)


def finished_model(record: TrialRecord, weights: Path, splits: Splits) -> FinishedModel:
    """Returns the model of a trial's only run, on the CPU. Raises: RuntimeError: other weights."""
    recipe, run = Recipe.model_validate(record.recipe), record.runs[-1]
    network = build_model(recipe, splits, seed=run.seed, device=torch.device("cpu"))
    recipe.speedups.begin(network, seed=run.seed)
    last_shape, _ = step_schedule_of(recipe, splits)[-1]
    recipe.begin_step(network, last_shape)
    take_state(network, load_weights(weights))
    # Without one in the record the training part's were used, also by earlier versions.
    used = run.normalisation or splits
    view = view_of(recipe, splits)._replace(mean=used.mean, std=used.std)
    model = FinishedModel(network, recipe, view)
    return model.eval().requires_grad_(False)


def accuracy_of(
    model: nn.Module, images: Images, *, batch_size: int, device: torch.device
) -> float:
    """Returns the share of `images` that a model of pixels predicts correctly, in [0, 1]."""
    batches = (
        (_on(pixels, device).permute(0, 3, 1, 2), _on(labels, device))
        for pixels, labels in _without_boxes(images, batch_size)
    )
    return evaluate(model, batches, device=device, autocast_dtype=None).accuracy


def _without_boxes(
    images: Images, batch_size: int
) -> Iterator[tuple[NDArray[np.uint8], NDArray[Any]]]:
    """Yields batches of images (B, H, W, C) of one size, without what fills their boxes up."""
    whole, places = whole_of(images.pixels)
    sizes = images.sizes
    if sizes is None:
        sizes = np.broadcast_to(whole.shape[1:3], (len(images.labels), 2))
    for height, width in np.unique(sizes, axis=0).tolist():
        rows = np.flatnonzero((sizes == (height, width)).all(axis=1))
        for some in np.split(rows, range(batch_size, len(rows), batch_size)):
            pixels = whole.take(some if places is None else places[some], axis=0)
            yield pixels[:, :height, :width], images.labels[some]


def _on(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
