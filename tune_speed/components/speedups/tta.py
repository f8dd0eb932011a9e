"""Evaluation that looks at several views of an image."""

from typing import TYPE_CHECKING, ClassVar, Literal

from tune_speed.components.speedups.base import Slot, SpeedupConfig

if TYPE_CHECKING:
    from torch import Tensor, nn


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
        """Returns the mean logits (N, K) of the views of images (N, C, H, W)."""
        return mirrored(model, images) if self.views == 2 else mirrored_and_shifted(model, images)


def mirrored(model: "nn.Module", images: "Tensor") -> "Tensor":
    """Returns the mean logits (N, K) of the images (N, C, H, W) and their mirror images."""
    logits: Tensor = (model(images) + model(images.flip(3))) / 2
    return logits


def mirrored_and_shifted(model: "nn.Module", images: "Tensor") -> "Tensor":
    """Returns the mean of `mirrored` over images, with weight 1/2, and two shifts of them."""
    from torch.nn.functional import pad

    height, width = images.shape[2:]
    padded = pad(images, (1, 1, 1, 1), mode="reflect")
    up_left, down_right = padded[:, :, 2:, 2:], padded[:, :, :height, :width]
    shifted = (mirrored(model, up_left) + mirrored(model, down_right)) / 2
    return (mirrored(model, images) + shifted) / 2
