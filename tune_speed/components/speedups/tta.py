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
        from tune_speed.components.speedups.modules.views import mirrored, mirrored_and_shifted

        return mirrored(model, images) if self.views == 2 else mirrored_and_shifted(model, images)
