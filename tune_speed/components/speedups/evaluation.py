"""What evaluation looks at: averaged weights, and several views of an image."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from tune_speed.components.speedups import modules
from tune_speed.components.speedups.base import Averager, Slot, SpeedupConfig

if TYPE_CHECKING:
    from torch import Tensor, nn


class Ema(SpeedupConfig):
    """An exponential moving average of weights and batch statistics is evaluated in their place.

    With the half-life h as a share of the run, weights of x of the run ago count 0.5^(x/h) of the
    present ones. So the same setting means the same for a run of any length, which a decay per
    step does not. Weights before the first step count nothing: the average is over steps.
    For a decay of d a step and T steps, h = ln 0.5 / (T · ln d): 0.999 in 2,000 steps is 0.35.

    Training continues with its own weights, unlike with Lookahead.

    Source: Polyak and Juditsky 1992; half-life as in mosaicml/composer, EMA; timm's ModelEmaV3.
    """

    slot: ClassVar[Slot] = "averaging"
    untimed_fields = frozenset({"half_life"})
    conflicts: ClassVar[dict[str, str]] = {
        "boosted": "weights of a stage that was not trained yet are no part of a sensible average.",
    }

    half_life: float = Field(default=0.02, gt=0, le=1)
    """Share of the run after which weights count half."""
    every: int = Field(default=5, ge=1, le=10_000)
    """Optimizer steps between two updates of the average; the run's last step always counts."""

    @property
    def period(self) -> int:
        return self.every

    def averager(self, model: "nn.Module") -> Averager | None:
        return modules.ema.MovingAverage(model, half_life=self.half_life, every=self.every)


class Tta(SpeedupConfig):
    """Test-time augmentation: the logits are a mean over flipped and shifted views of the image.

    It makes evaluation, and later use, `views` times as costly, not training; a target is met
    earlier in return. Results with different numbers of views do not compare as networks: the
    number is part of the recipe, and must be named with the result.

    Source: K. Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU (arXiv:2404.00498),
    section 3.5.
    """

    slot: ClassVar[Slot] = "views"
    untimed_fields = frozenset({"views"})

    views: Literal[2, 6] = 2
    """2: the image and its mirror image, evenly. 6: these, shifted by one pixel up and left, and
    down and right, as well, with reflected borders; the unshifted ones weigh one half. Leave `tta`
    out for 1."""

    def predict(self, model: "nn.Module", images: "Tensor") -> "Tensor | None":
        return mirrored(model, images) if self.views == 2 else mirrored_and_shifted(model, images)


def mirrored(model: "nn.Module", images: "Tensor") -> "Tensor":
    """Returns the mean logits (N, K) of the images (N, C, H, W) and their mirror images."""
    logits: Tensor = (model(images) + model(images.flip(3))) / 2
    return logits


def mirrored_and_shifted(model: "nn.Module", images: "Tensor") -> "Tensor":
    from torch.nn.functional import pad

    height, width = images.shape[2:]
    padded = pad(images, (1, 1, 1, 1), mode="reflect")
    up_left, down_right = padded[:, :, 2:, 2:], padded[:, :, :height, :width]
    shifted = (mirrored(model, up_left) + mirrored(model, down_right)) / 2
    return (mirrored(model, images) + shifted) / 2
