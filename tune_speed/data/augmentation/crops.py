"""Crops: which window of a stored image is resized to what the network sees."""

import math

import numpy as np
from pydantic import Field

from tune_speed.core.config import Config, Table
from tune_speed.data.augmentation.base import Drawer, Integers

# Keys of random streams: of a window's shape, under each attempt's number, and of its place.
SHAPE, PLACE = 20, 21
ATTEMPTS = 10


class Crop(Config):
    """Base of the crops."""

    def windows(self, sizes: Integers, drawer: Drawer) -> Integers:
        """Returns upper edge, left edge, height and width of each image's window [pixels], (4, N).

        `sizes` (N, 2) are the heights and widths of the images; windows lie within them.
        """
        raise NotImplementedError


class Centre(Crop):
    """The largest square in the centre: no change at random.

    Source: the usual practice; torchvision's Resize to a size, then CenterCrop to the same one.
    """

    def windows(self, sizes: Integers, drawer: Drawer) -> Integers:
        return centred(sizes, crop_pct=1.0)


class RandomResized(Crop):
    """Random-resized-crop: a window of random area and aspect ratio, anywhere in the image.

    Its area is uniform in [scale, 1] of the image's, the logarithm of its ratio of width to height
    uniform in ± ln(ratio). Ten such windows are drawn, and the first that fits is taken; if none
    does, the largest centred window whose ratio is allowed.

    Source: Szegedy et al. 2015, Going Deeper with Convolutions (arXiv:1409.4842), section 6;
    torchvision's RandomResizedCrop with scale=(scale, 1), ratio=(1 / ratio, ratio), which timm's
    `--scale` and `--ratio` set.
    """

    scale: float = Field(default=0.08, gt=0, le=1)
    """Least share of the image's area; the largest is 1."""
    ratio: float = Field(default=4 / 3, ge=1, le=10)
    """Largest ratio of the window's width to its height; the least is 1 / ratio."""

    def windows(self, sizes: Integers, drawer: Drawer) -> Integers:
        heights, widths = sizes.T.astype(np.float64)
        shape = self._fallback(heights, widths)
        is_open = np.ones(len(sizes), dtype=bool)
        for attempt in range(ATTEMPTS):
            height, width = self._attempt(heights * widths, drawer, attempt)
            fits = is_open & (height >= 1) & (width >= 1) & (height <= heights) & (width <= widths)
            shape[:, fits] = np.stack([height, width])[:, fits]
            is_open &= ~fits
        drawn = drawer.bits(PLACE)
        halves = np.stack([drawn >> np.uint64(32), drawn & np.uint64(0xFFFFFFFF)])
        places = np.floor(halves * 2.0**-32 * (np.stack([heights, widths]) - shape + 1))
        # Where none fits the window lies in the centre.
        centred_at = np.round((np.stack([heights, widths]) - shape) / 2)
        return np.concatenate([np.where(is_open, centred_at, places), shape]).astype(np.int64)

    def _attempt(
        self, areas: np.ndarray, drawer: Drawer, attempt: int
    ) -> tuple[np.ndarray, np.ndarray]:
        drawn = drawer.bits(SHAPE, attempt)
        share = self.scale + (1 - self.scale) * ((drawn >> np.uint64(32)) * 2.0**-32)
        turn = (drawn & np.uint64(0xFFFFFFFF)) * 2.0**-31 - 1
        ratios = np.exp(turn * math.log(self.ratio))
        return np.round(np.sqrt(areas * share / ratios)), np.round(np.sqrt(areas * share * ratios))

    def _fallback(self, heights: np.ndarray, widths: np.ndarray) -> np.ndarray:
        height = np.minimum(heights, np.round(widths * self.ratio))
        width = np.minimum(widths, np.round(heights * self.ratio))
        return np.stack([height, width])


CROPS: Table = {"centre": Centre, "random_resized": RandomResized}


def centred(sizes: Integers, *, crop_pct: float) -> Integers:
    """Returns the window (4, N) in the centre of each image, with `crop_pct` of its short side."""
    side = np.maximum(1, np.round(crop_pct * sizes.min(axis=1))).astype(np.int64)
    above, left = np.round((sizes - side[:, None]).T / 2).astype(np.int64)
    return np.stack([above, left, side, side])
