"""Random changes to training images: pad-crop, flip, affine changes and cutout."""

# What happens to an image is a function of (seed, epoch, its index in the set) alone: neither the
# batch size, nor the loader, nor its workers, nor the device changes it. So all numbers of an epoch
# are drawn at once, on the host, and no step waits for them.

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.data import randomness

# Keys of the random streams, each under (seed, epoch).
SHIFT_Y, SHIFT_X, FLIP, CORNER_Y, CORNER_X = range(1, 6)
AFFINE = 10


class Augmentation(Config):
    """What is changed at random in each training image; evaluation sees images as they are."""

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


class Draws(NamedTuple):
    """One epoch's random numbers, (N,) each, for the images in the set's order."""

    shift_y: NDArray[np.int64]
    """Upper edge of the window in the padded image, 0 to 2 * pad."""
    shift_x: NDArray[np.int64]
    is_flipped: NDArray[np.int64]
    """0 or 1."""
    affine: NDArray[np.int64]
    """The six entries of the affine change, 10 bits each."""
    corner_y: NDArray[np.int64]
    """Upper edge of the square in the image."""
    corner_x: NDArray[np.int64]


def draw(config: Augmentation, shape: tuple[int, int, int], *, seed: int, epoch: int) -> Draws:
    """Returns the random numbers of epoch number `epoch` for (N, H, W) images."""
    num_samples, height, width = shape

    def below(limit: int, stream: int) -> NDArray[np.int64]:
        if limit == 1:
            return np.zeros(num_samples, dtype=np.int64)
        return randomness.below(limit, seed, epoch, stream, count=num_samples)

    shifts, free = 2 * config.pad + 1, 1 - config.cutout
    return Draws(
        shift_y=below(shifts, SHIFT_Y),
        shift_x=below(shifts, SHIFT_X),
        is_flipped=_flips(config.flip, num_samples, seed, epoch),
        affine=(randomness.bits(seed, epoch, AFFINE, count=num_samples) >> np.uint64(4)).astype(
            np.int64
        )
        if config.affine
        else np.zeros(num_samples, dtype=np.int64),
        corner_y=below(height + free if config.cutout else 1, CORNER_Y),
        corner_x=below(width + free if config.cutout else 1, CORNER_X),
    )


def draw_in_order(
    config: Augmentation,
    order: NDArray[np.int64],
    *,
    shape: tuple[int, int, int],
    repeats: bool,
    seed: int,
    epoch: int,
) -> Draws:
    """Returns the random numbers of epoch number `epoch`, (M,) each, by position in its order (M,).

    With `repeats` they are drawn for each position, so that no two showings of an image are alike,
    and alternating flips alternate from showing to showing. `shape` is (N, H, W) of the whole set.
    """
    if not repeats:
        of_image = draw(config, shape, seed=seed, epoch=epoch)
        return Draws(*np.stack(of_image).take(order, axis=1))
    draws = draw(config, (len(order), *shape[1:]), seed=seed, epoch=epoch)
    if config.flip != "alternating":
        return draws
    # How often the image of each position came before it, (M,).
    positions = np.argsort(order, kind="stable")
    _, starts, counts = np.unique(order[positions], return_index=True, return_counts=True)
    showings = np.empty(len(order), dtype=np.int64)
    showings[positions] = np.arange(len(order)) - np.repeat(starts, counts)
    flips = _flips(config.flip, shape[0], seed, epoch)
    return draws._replace(is_flipped=flips.take(order) ^ (showings & 1))


def _flips(flip: str, num_samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    if flip == "none":
        return np.zeros(num_samples, dtype=np.int64)
    if flip == "random":
        return randomness.below(2, seed, epoch, FLIP, count=num_samples)
    return randomness.below(2, seed, 0, FLIP, count=num_samples) ^ (epoch & 1)
