"""The network of a finished trial as others can use it: pixels in, logits out.

Its weights are what the trial's last evaluation looked at (the average's, where weights were
averaged). All that the evaluation did besides is inside as well: normalisation, precision, and the
views of test-time augmentation. So its accuracy is the record's.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from tune_speed.components.models.networks.weights import take_state
from tune_speed.core.records import TrialRecord
from tune_speed.data.base import Images
from tune_speed.data.split import Splits
from tune_speed.training.best_weights import load_weights
from tune_speed.training.build import build_model, step_schedule_of
from tune_speed.training.evaluate import evaluate
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.gradient import AUTOCAST_DTYPES


class FinishedModel(nn.Module):
    """Images as uint8 (N, C, H, W), 0 to 255, in; float32 logits (N, num_classes) out."""

    scale: Tensor
    shift: Tensor

    def __init__(
        self, network: nn.Module, recipe: Recipe, *, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> None:
        """Wraps a trained network.

        `mean` and `std` are those of each channel, pixels in [0, 1].
        """
        super().__init__()
        self.network = network
        self._predict = recipe.speedups.predict
        self._dtype = AUTOCAST_DTYPES[recipe.precision]
        self._format = torch.channels_last if recipe.is_channels_last else torch.contiguous_format
        # As `image_ops.Normalizer` computes them, so that not a bit differs.
        means, stds = torch.tensor([mean, std], dtype=torch.float64).view(2, 1, -1, 1, 1)
        self.register_buffer("scale", (1 / (255 * stds)).float())
        self.register_buffer("shift", (means / stds).float())

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns the logits."""
        images = pixels.float() * self.scale - self.shift
        images = images.contiguous(memory_format=self._format)
        if self._dtype is None:
            return self._predict(self.network, images).float()
        with torch.autocast(images.device.type, self._dtype):
            logits = self._predict(self.network, images)
        return logits.float()


def finished_model(record: TrialRecord, weights: Path, splits: Splits) -> FinishedModel:
    """Returns the model of a trial's only run on the CPU, in evaluation mode.

    Raises: RuntimeError if the weights are not those of the record's recipe.
    """
    recipe, run = Recipe.model_validate(record.recipe), record.runs[-1]
    network = build_model(recipe, splits, seed=run.seed, device=torch.device("cpu"))
    recipe.speedups.begin(network, seed=run.seed)
    last_shape, _ = step_schedule_of(recipe, splits)[-1]
    recipe.speedups.begin_step(network, last_shape)
    take_state(network, load_weights(weights))
    model = FinishedModel(network, recipe, mean=splits.mean, std=splits.std)
    return model.eval().requires_grad_(False)


def accuracy_of(
    model: nn.Module, images: Images, *, batch_size: int, device: torch.device
) -> float:
    """Returns the share of `images` that a model of pixels predicts correctly, in [0, 1]."""
    # Copies, as torch warns of arrays that cannot be written to.
    parts = (
        [torch.from_numpy(array[start : start + batch_size].copy()).to(device) for array in images]
        for start in range(0, len(images.labels), batch_size)
    )
    batches = ((pixels.permute(0, 3, 1, 2), labels) for pixels, labels in parts)
    return evaluate(model, batches, device=device, autocast_dtype=None).accuracy
