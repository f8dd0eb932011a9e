"""What is changed at random in training images, and the numbers of an epoch's changes."""

# What happens to an image is a function of (seed, epoch, its index in the set) alone: neither the
# batch size, nor the loader, nor its workers, nor the device changes it. So all numbers of an epoch
# are drawn at once, on the host, and no step waits for them.

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from tune_speed.core.config import Component, Config, left_out
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.data.augmentation import mix
from tune_speed.data.augmentation.base import Change, Drawer, Draws, Integers
from tune_speed.data.augmentation.crops import CROPS, Centre, Crop
from tune_speed.data.augmentation.operations import AUTO, ColorJitter, Erasing, Off

# Keys of the random streams, each under (seed, epoch).
SHIFT_Y, SHIFT_X, FLIP, CORNER_Y, CORNER_X = range(1, 6)
AFFINE = 10
WINDOW = ("window_y", "window_x", "window_h", "window_w")
"""Names of what says which window of a stored image is shown [pixels]."""


class Augmentation(Config):
    """What is changed at random in each training image; evaluation sees images as they are."""

    untimed_fields = frozenset({"mixup_prob", "mixup_switch_prob"})
    switch_fields = frozenset({"mixup", "cutmix"})

    crop: Annotated[Crop, Component(CROPS)] = left_out(Centre())
    """Window of a stored image that is resized to the recipe's `image_size`."""
    pad: int = Field(default=0, ge=0)
    """Border [pixels] added by reflection on each side before a window of the image's own size is
    cut out at random; 0: none."""
    flip: Literal["none", "random", "alternating"] = "none"
    """Left-right flips: none; each image with probability 1/2; or at random in epoch 0 and inverted
    in every epoch after it, so that two epochs show each image both ways.
    Source: K. Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU (arXiv:2404.00498)."""
    affine: float = Field(default=0.0, ge=0, lt=1)
    """Largest entry of a random affine change: a pixel at x in [-1, 1]^2 gets what is at
    (I + A) x + b, all six entries of A and b uniform within ± this; 0: none. 0.05 turns, scales,
    shears and moves an image by a few per cent. Between pixels it is bilinear, and mirrored beyond
    the edge."""
    cutout: int = Field(default=0, ge=0)
    """Side [pixels] of a square that is set to the mean; 0: none. It lies wholly within the image,
    unlike that of DeVries and Taylor 2017 (arXiv:1708.04552), which the edge may cut."""

    auto: Annotated[Change, Component(AUTO)] = left_out(Off())
    """Operations on geometry and colours that are drawn for each image, after crop and flip."""
    color_jitter: ColorJitter = left_out(ColorJitter())
    """Random brightness, contrast, saturation and hue, after `auto`."""
    erasing: Erasing = left_out(Erasing())
    """A random rectangle of the normalised image that gets 0 or noise, before images are mixed."""
    mixup: float = left_out(0.0, ge=0, le=100)
    """Mixup: α of Beta(α, α), by which an image's share λ of its mix with another is drawn; 0:
    none. timm's recipes have 0.1 to 0.8. Source: Zhang et al. 2018 (arXiv:1710.09412)."""
    cutmix: float = left_out(0.0, ge=0, le=100)
    """Cutmix: α of Beta(α, α), by which the share that a box of another image does not cover is
    drawn; 0: none. Source: Yun et al. 2019 (arXiv:1905.04899)."""
    mixup_prob: float = left_out(1.0, ge=0, le=1)
    """Probability that an image is mixed, as timm's `--mixup-prob`."""
    mixup_switch_prob: float = left_out(0.5, ge=0, le=1)
    """Probability of cutmix, where both are on, as timm's `--mixup-switch-prob`."""

    @property
    def mixed_images(self) -> int:
        """How many images are mixed with one another, and must be in one batch; 1: none is."""
        return 2 if self.mixup or self.cutmix else 1

    @property
    def pixel_changes(self) -> tuple[Change, ...]:
        """The changes that act on pixels in [0, 255], in their order."""
        return tuple(change for change in (self.auto, self.color_jitter) if change.is_on)

    @property
    def normalised_changes(self) -> tuple[Change, ...]:
        """The changes that act on normalised images, in their order."""
        return (self.erasing,) if self.erasing.is_on else ()

    def speed_fields(self) -> dict[str, Any]:
        fields = super().speed_fields()
        parts = {"color_jitter": self.color_jitter, "erasing": self.erasing}
        return fields | {n: part.speed_fields() for n, part in parts.items() if n in fields}

    def check(self, height: int, width: int) -> None:
        """Raises: ConfigError if images of `height` x `width` pixels are too small for it."""
        side = min(height, width)
        limits = {"pad": side - 1, "cutout": side}
        problems = tuple(
            Problem(
                path=f"augmentation.{field}",
                must=f"must be at most {most} for images of {height}x{width} pixels",
                given=str(getattr(self, field)),
            )
            for field, most in limits.items()
            if getattr(self, field) > most
        )
        if problems:
            raise ConfigError(problems=problems)


def draw(config: Augmentation, drawer: Drawer) -> Draws:
    """Returns the random numbers of an epoch, (N,) each, in the set's order."""
    draws: Draws = {}
    if drawer.sizes is not None:
        windows = config.crop.windows(drawer.sizes, drawer)
        draws |= dict(zip(WINDOW, windows, strict=True))
    if config.pad:
        draws["shift_y"] = drawer.below(2 * config.pad + 1, SHIFT_Y)
        draws["shift_x"] = drawer.below(2 * config.pad + 1, SHIFT_X)
    if config.flip != "none":
        draws["is_flipped"] = _flips(config, drawer)
    if config.affine:
        draws["affine"] = (drawer.bits(AFFINE) >> np.uint64(4)).astype(np.int64)
    if config.cutout:
        draws["corner_y"] = drawer.below(drawer.height + 1 - config.cutout, CORNER_Y)
        draws["corner_x"] = drawer.below(drawer.width + 1 - config.cutout, CORNER_X)
    for change in (*config.pixel_changes, *config.normalised_changes):
        draws |= change.draw(drawer)
    if config.mixed_images > 1:
        prob, switch_prob = config.mixup_prob, config.mixup_switch_prob
        alphas = {"mixup": config.mixup, "cutmix": config.cutmix}
        draws |= mix.draw(drawer, **alphas, prob=prob, switch_prob=switch_prob)
    return draws


def draw_in_order(config: Augmentation, order: Integers, drawer: Drawer, *, repeats: bool) -> Draws:
    """Returns the random numbers of an epoch, (M,) each, by position in its order (M,).

    With `repeats` they are drawn for each position, so that no two showings of an image are alike,
    and alternating flips alternate from showing to showing.
    """
    if not repeats:
        return {name: values.take(order) for name, values in draw(config, drawer).items()}
    sizes = None if drawer.sizes is None else drawer.sizes.take(order, axis=0)
    draws = draw(config, drawer._replace(num_images=len(order), sizes=sizes))
    if config.flip != "alternating":
        return draws
    # How often the image of each position came before it, (M,).
    positions = np.argsort(order, kind="stable")
    _, starts, counts = np.unique(order[positions], return_index=True, return_counts=True)
    showings = np.empty(len(order), dtype=np.int64)
    showings[positions] = np.arange(len(order)) - np.repeat(starts, counts)
    return draws | {"is_flipped": _flips(config, drawer).take(order) ^ (showings & 1)}


def _flips(config: Augmentation, drawer: Drawer) -> Integers:
    if config.flip == "random":
        return drawer.below(2, FLIP)
    return drawer._replace(epoch=0).below(2, FLIP) ^ (drawer.epoch & 1)
