"""The hooks through which a speed-up acts on a training.

`SpeedupConfig` has a method for each, which does nothing unless a speed-up overrides it. When they
are called: `growth` and `shape` when the run is planned; `change_model`, `read_data` and `begin`
during set-up, off the clock; `init_weights` before the first step, on the clock; `begin_step`
before each optimizer step; `change_batch`, `choose` and `sum_of_losses` on each micro-batch, on
the device; `averager` once, and what it returns after each optimizer step; `predict` on each
evaluation batch; `state` and `restore` with a checkpoint.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, Problem

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Slot = Literal[
    "init", "dropout", "depth", "backward", "selection", "resolution", "batch_growth", "loss",
    "averaging", "views",
]  # fmt: skip
"""Field of `Speedups` that a speed-up belongs in; two of one slot exclude each other."""


class Shape(NamedTuple):
    """What the duration of an optimizer step depends on, beyond the recipe's fixed fields."""

    height: int
    """Of the images that the network sees [pixels]."""
    width: int
    growth: int = 1
    """Samples of a step over those of the recipe's `effective_batch_size`."""
    kept_frac: float = 1.0
    """Share of the samples that is learned from, in (0, 1]."""
    stage: int = 0
    """Number of the part of the network that is trained, for training by stages."""
    is_bias_frozen: bool = False
    """Whether the first convolution's bias is trained no more."""
    is_frozen: bool = False
    """Whether the first layers are not trained yet."""


class Start(NamedTuple):
    """What weights may be derived from: the training part, and how to train on it."""

    batches: "Callable[[int], Iterator[tuple[Tensor, Tensor]]]"
    """Batches of epoch n: images (B, C, H, W), float32, normalised and augmented; labels (B,)."""
    easiest: "Callable[[float, int], Iterator[tuple[Tensor, Tensor]]]"
    """Batches of so many passes, each in a new order, over the share, below 1, of each class's
    images that have the least loss after the curriculum's short training."""
    num_train: int
    num_classes: int
    batch_size: int
    """Images of a batch, but for an epoch's last."""
    device: "torch.device"
    seed: int
    fit: "Callable[[nn.Module, Iterator[tuple[Tensor, Tensor]], int], None]"
    """Trains a model for n optimizer steps on batches, as the recipe does, at its rate for steps of
    that many samples, after a warm-up."""


class Averager(Protocol):
    """Weights averaged over steps."""

    @property
    def model(self) -> "nn.Module":
        """Has the averaged weights; it is what is evaluated."""

    def update(self, model: "nn.Module", *, frac: float) -> None:
        """Takes in the weights after the optimizer step that ends at `frac` of the run."""

    def state(self) -> dict[str, Any]:
        """Returns all that the average is made of: tensors and plain values, for a checkpoint."""

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` returned in another process."""


class RecipeView(Protocol):
    """What a speed-up may read of the recipe that it is part of."""

    @property
    def model(self) -> Config:
        """The network's configuration."""

    @property
    def optimizer(self) -> Config:
        """The optimizer's configuration."""

    @property
    def compile(self) -> bool | str:
        """Whether the model is compiled, or `auto`."""

    @property
    def precision(self) -> str:
        """`fp32`, `bf16`, `fp16` or `half`."""

    @property
    def devices(self) -> int:
        """Processes that train together."""


def refusal(path: str, *, must: str, given: str, hint: str | None = None) -> ConfigError:
    """Returns the error that a speed-up cannot act on such a network or data."""
    return ConfigError(problems=(Problem(path=path, must=must, given=given, hint=hint),))


class SpeedupConfig(Config):
    """A technique that a search can switch on; every method is a hook and does nothing here.

    `untimed_fields` are those that change a step's duration by its `Shape` alone, too.
    """

    slot: ClassVar[Slot]
    """Its field of a recipe's `speedups`."""
    conflicts: ClassVar[dict[str, str]] = {}
    """Why it cannot be had together with another technique, by that one's name."""
    leaves_gradients_out: ClassVar[bool] = False
    """Whether a step may give some parameters no gradient."""
    takes_several_labels: ClassVar[bool] = False
    """Whether its `sum_of_losses` is one for images of several classes each."""
    takes_class_weights: ClassVar[bool] = False
    """Whether its `sum_of_losses` has a parameter `class_weights`, (K,), by name; (): all 1."""
    is_recordable: ClassVar[bool] = True
    """Whether forward and backward do the same operations in all steps of one `Shape`, whatever the
    images, the draws and the part of the run, and without waiting for the device."""

    def refusals(self, recipe: RecipeView) -> Iterator[Problem]:
        """Yields what in the rest of the recipe it cannot be had with; paths as in the recipe."""
        yield from ()

    def check_model(self, model: "nn.Module") -> None:
        """Raises: ConfigError if it cannot act on such a network."""

    @property
    def period(self) -> int:
        """Optimizer steps after which what a step costs repeats, but for chance."""
        return 1

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        """Returns the network that is trained in the place of `model`, which may be changed."""
        return model

    def located(self) -> Self:
        """Returns the same with absolute paths, which mean the same in every process."""
        return self

    def read_data(self) -> None:
        """Reads data of its own into memory. Raises: ConfigError, DataError."""

    def begin(self, model: "nn.Module", *, seed: int) -> None:
        """Resets what warm-up and timed steps have moved, such as random draws."""

    def state(self, model: "nn.Module") -> dict[str, Any]:
        """Returns what the changed model remembers beyond tensors, as tensors and plain values.

        What follows from the step's number, as `begin_step` sets it, is no part of it.
        """
        return {}

    def restore(self, model: "nn.Module", state: dict[str, Any]) -> None:
        """Takes over what `state` returned in another process, once `begin` was called."""

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        """Sets weights, in place, before the first step; the time that it takes counts."""

    def growth(self) -> tuple[tuple[float, int], ...]:
        """Returns the stages of the batch size: share of the run's samples, factor."""
        return ((1.0, 1),)

    def shape(self, shape: Shape, *, frac: float) -> Shape:
        """Returns the shape of the step that begins at `frac` of the run, in [0, 1)."""
        return shape

    def begin_step(self, model: "nn.Module", shape: Shape) -> None:
        """Readies the changed model for an optimizer step of that shape."""

    def change_batch(
        self, images: "Tensor", labels: "Tensor", shape: Shape
    ) -> "tuple[Tensor, Tensor]":
        """Returns what is learned from of images (N, C, H, W): (N, C, H', W') and their labels.

        Labels are classes (N,), int64, or targets (N, K), float32: shares of a mixed image, or 1
        for each of several classes. Classes may be returned as targets.
        """
        return images, labels

    def kept(self, num_samples: int, shape: Shape) -> int:
        """Returns how many of a micro-batch's samples `choose` keeps, at least 1."""
        return num_samples

    def choose(
        self,
        images: "Tensor",
        labels: "Tensor",
        shape: Shape,
        *,
        losses: "Callable[[Tensor, Tensor], Tensor]",
    ) -> "tuple[Tensor, Tensor]":
        """Returns the `kept` samples of a micro-batch (N, C, H, W) that are learned from.

        Labels are those of `change_batch`.

        `losses` gives the samples' losses (N,), by the model as it is, without gradients.
        """
        return images, labels

    def sum_of_losses(
        self, logits: "Tensor", labels: "Tensor", *, frac: float, label_smoothing: float
    ) -> "Tensor | None":
        """Returns the sum over samples of the loss, fp32; None: cross-entropy, as always.

        Of logits (N, K), fp32, and labels (N,), or targets (N, K); the step ends at `frac` of the
        run, in (0, 1].
        """
        return None

    def averager(self, model: "nn.Module") -> Averager | None:
        """Returns what averages the weights from now on; None: nothing does."""
        return None

    def predict(self, model: "nn.Module", images: "Tensor") -> "Tensor | None":
        """Returns the logits (N, K) of an evaluation batch; None: `model(images)`, as always."""
        return None


class Off(SpeedupConfig):
    """Nothing in this slot."""
