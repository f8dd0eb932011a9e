"""A trained network in one file: tensors and plain data, for `torch.load(weights_only=True)`.

`weights` are those of the last evaluation (the average's, where weights were averaged), under the
names of the network's state dict; the other entries are the fields of `ModelFacts`.
"""

import io
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from tune_speed.components.models.networks.libraries import take_state
from tune_speed.components.plugins import registry
from tune_speed.components.speedups.base import Shape
from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, writing
from tune_speed.core.records import Normalisation, RunResult, Status
from tune_speed.data.base import EncodedRows, Images
from tune_speed.data.loaders.resident import Showing, View
from tune_speed.data.split import Splits
from tune_speed.runtime.atomic_file import write_atomically
from tune_speed.tracking.store.store import Store
from tune_speed.training.build import Job, build_model, normalisation_of, view_of
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import AUTOCAST_DTYPES
from tune_speed.training.trial import KeepWeights, environment

Pixels = Annotated[int, Field(ge=1, le=2**16)]

_log = logging.getLogger(__name__)


class ModelFacts(Config):
    """What a saved network needs beside its weights to classify images."""

    format: Literal["tune_speed.model.1"] = "tune_speed.model.1"
    class_names: Annotated[tuple[str, ...], Field(min_length=2)]
    are_several: bool
    """Whether an image may be of several classes, whose chances are then independent."""
    metric: str
    value: float
    """Of the metric at the last evaluation, on `part`."""
    part: Literal["validation", "test"]
    normalisation: Normalisation
    shape: tuple[Pixels, Pixels, Annotated[int, Field(ge=1, le=64)]]
    """Largest height and width of the stored images, and their channels."""
    eval_size: Pixels | None
    """Height and width at which images are evaluated; None: those of the stored ones."""
    crop_pct: Annotated[float, Field(gt=0, le=1)]
    """Share of the shorter side that evaluation shows."""
    stored: tuple[Pixels | None, Pixels | None, bool]
    """`dataset.image_size` and `store_size`, and whether images were stored as JPEG."""
    last_shape: Shape
    """Shape of the last optimizer step."""
    seed: int
    recipe: Recipe
    plugins: dict[str, str]
    """Hashes of the plugins' sources, by title."""
    environment: dict[str, str]
    """Versions of packages, platform and commit."""

    @classmethod
    def of(cls, job: Job, value: float) -> Self:
        recipe, splits, dataset = job.recipe, job.splits, job.workload.dataset
        pixels, view = splits.train.pixels, view_of(recipe, splits)
        height, width, channels = pixels.shape[1:]
        side, most = (getattr(dataset, name, None) for name in ("image_size", "store_size"))
        return cls(
            class_names=splits.class_names or tuple(map(str, range(splits.num_classes))),
            are_several=splits.train.labels.ndim == 2,
            metric=job.workload.target.metric,
            value=value,
            part=job.evaluated_on,
            normalisation=normalisation_of(recipe, splits),
            shape=(height, width, channels),
            eval_size=view.image_size,
            crop_pct=view.crop_pct,
            stored=(side, most, isinstance(pixels, EncodedRows)),
            last_shape=job.step_schedule[-1][0],
            seed=job.seed,
            recipe=recipe,
            plugins=registry.hashes(),
            environment={n: text for n, text in environment().items() if n != "host"},
        )

    def network(self, weights: Mapping[str, Tensor], device: torch.device) -> nn.Module:
        # Where training began is of no use any more, and may be elsewhere.
        start = {"weights_file": None, "pretrained": False}.items()
        model = self.recipe.model
        model = model.model_copy(update={n: value for n, value in start if hasattr(model, n)})
        recipe = self.recipe.model_copy(update={"model": model})
        by, labels = self.normalisation, np.zeros((0, 1) if self.are_several else 0)
        none = Images(np.zeros((0, *self.shape), np.uint8), labels)
        splits = Splits(none, none, none, by.mean, by.std, len(self.class_names), split_hash="")
        network = build_model(recipe, splits, seed=self.seed, device=device)
        recipe.speedups.begin(network, seed=self.seed)
        recipe.begin_step(network, self.last_shape)
        take_state(network, weights)
        return network


def keep_in(file: Path) -> KeepWeights:
    """Returns what has runs leave the best of their networks in `file`, from now on.

    Raises: ConfigError, StorageError if nothing can be written there.
    """
    with writing(file):
        tempfile.TemporaryFile(dir=file.absolute().parent).close()
    return KeepWeights(file=str(file.absolute()), since=time.time())


def is_left(keep: KeepWeights) -> bool:
    """Returns whether a run has left its network since then."""
    return os.path.isfile(keep.file) and os.path.getmtime(keep.file) >= (keep.since or 0)


def save_model(keep: KeepWeights | None, job: Job, run: RunResult, network: nn.Module) -> None:
    """Writes the network of a run, as it was evaluated last, if it may be the best so far.

    Does nothing where the folder is not visible: on another node without shared storage.
    """
    value = None if run.final is None else run.final.value(job.workload.target.metric)
    if keep is None or value is None or not _is_wanted(keep, job, run, value):
        return
    try:
        # torch's own writing to a full disk is no OSError.
        buffer, facts = io.BytesIO(), ModelFacts.of(job, value).model_dump(mode="json")
        weights = {name: tensor.cpu() for name, tensor in network.state_dict().items()}
        torch.save({**facts, "weights": weights}, buffer)
        with write_atomically(Path(keep.file)) as file:
            file.write(buffer.getvalue())
    # No trial fails because of it: callers report a file that is missing.
    except (OSError, RuntimeError, MemoryError):
        _log.warning("the network was not saved in %s", keep.file, exc_info=True)


def _is_wanted(keep: KeepWeights, job: Job, run: RunResult, value: float) -> bool:
    if not Path(keep.file).parent.is_dir() or run.status is Status.DIVERGED:
        return False
    if keep.since is None:
        most_s = math.inf if keep.at_most_s is None else keep.at_most_s
        return run.time_to_target_s is not None and run.time_to_target_s <= most_s
    score = job.workload.target.score
    # What is no network of ours is replaced.
    with suppress(ConfigError):
        return not is_left(keep) or score(value) > score(read_model(Path(keep.file))[0].value)
    return True


def read_model(path: Path) -> tuple[ModelFacts, dict[str, Tensor]]:
    """Returns what `save_model` wrote, on the CPU; nothing in the file is run.

    Raises: ConfigError if the file is missing, damaged or holds something else.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        weights = dict(found.pop("weights"))
        if not all(map(torch.is_tensor, weights.values())):
            raise TypeError("`weights` must be tensors")
        # Before the recipe is read: without its plugins its names would be unknown.
        registry.expect(dict(found["plugins"]), of=str(path))
        return ModelFacts.model_validate_json(json.dumps(found)), weights
    except ConfigError:
        raise
    # A damaged file fails in many ways: UnpicklingError, RuntimeError, EOFError, KeyError …
    except Exception as error:
        raise _foreign(path, error) from error


def _foreign(path: Path, error: Exception) -> ConfigError:
    why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return ConfigError(
        f"{path} must be a network that this version saved, with `tune-speed train RECIPE --save"
        f" FILE`, but: {why}"
    )


class SavedModel(nn.Module):
    """Windows as uint8 (N, C, H, W), 0 to 255, in; float32 logits (N, num_classes) out.

    All else that an evaluation does is inside: normalisation, precision, and the views of test-time
    augmentation. So its accuracy is the recorded one.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, facts: ModelFacts, network: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.facts, self.network, self.device = facts, network, device
        self._predict = facts.recipe.speedups.predict
        self.dtype = AUTOCAST_DTYPES[facts.recipe.precision]
        is_last = facts.recipe.is_channels_last
        self._format = torch.channels_last if is_last else torch.contiguous_format
        # As `image_ops.Normalizer` computes them, so that not a bit differs.
        both = [facts.normalisation.mean, facts.normalisation.std]
        means, stds = torch.tensor(both, dtype=torch.float64).view(2, 1, -1, 1, 1)
        self.register_buffer("scale", (1 / (255 * stds)).float())
        self.register_buffer("shift", (means / stds).float())
        self.to(device).eval().requires_grad_(False)

    @classmethod
    def read(cls, path: Path, device: torch.device) -> Self:
        """Raises: ConfigError if it is no saved network, or cannot be built here."""
        facts, weights = read_model(path)
        try:
            return cls(facts, facts.network(weights, device), device)
        # Libraries refuse arguments and weights by errors of many kinds.
        except Exception as error:
            raise _foreign(path, error) from error

    def forward(self, pixels: Tensor) -> Tensor:
        # A copy even of one channel, as `image_ops.to_channels_first` has it.
        images = (pixels.float() * self.scale - self.shift).clone(memory_format=self._format)
        if self.dtype is None:
            return self._predict(self.network, images).float()
        with torch.autocast(images.device.type, self.dtype):
            logits = self._predict(self.network, images)
        return logits.float()

    def windows(self, pixels: NDArray[np.uint8], sizes: NDArray[np.int64] | None) -> Tensor:
        """Returns what evaluation shows of stored images (N, H, W, C), not normalised yet."""
        of = self.facts
        by, size, share = of.normalisation, of.eval_size, of.crop_pct
        view = View(by.mean, by.std, image_size=size, crop_pct=share)
        showing = Showing(view, pixels.shape[1:3], self.device)
        return showing.windows(torch.from_numpy(pixels).to(self.device), sizes).permute(0, 3, 1, 2)

    @property
    def window_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a window."""
        (height, width, channels), side = self.facts.shape, self.facts.eval_size
        return channels, side or height, side or width

    def log(self, store: Store, *, run_id: str | None) -> str:
        """Logs it in MLflow, see `log_model`."""
        from tune_speed.tracking.writer.models import Card, log_model

        of = self.facts
        score = f"{of.metric} {of.value:.4f}"
        card = Card(score, of.part, self.window_shape, len(of.class_names))
        return log_model(store, self, card, run_id=run_id)
