"""Crops: which window of a stored image is resized to what the network sees."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.config import Config, Table
from tune_speed.data.augmentation.base import Drawer, Floats, Integers

# Keys of random streams: of a window's shape, under each attempt's number, and of its place.
SHAPE, PLACE = 20, 21
ATTEMPTS = 10
Booleans = NDArray[np.bool_]
Drawn = Callable[[int], Floats]
Fits = Callable[[Floats], Booleans]


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
        sides = sizes.T.astype(np.float64)
        shapes = np.minimum(sides, np.round(sides[::-1] * self.ratio))

        def drawn(attempt: int) -> Floats:
            share, turn = drawer.pairs(SHAPE, attempt)
            areas = sides.prod(axis=0) * (self.scale + (1 - self.scale) * share)
            ratios = np.exp((2 * turn - 1) * math.log(self.ratio))
            return np.asarray(np.sqrt(np.stack([areas / ratios, areas * ratios])).round())

        every = np.ones(len(sizes), dtype=bool)
        is_open = put_first_fitting(shapes, every, drawn, lambda one: (one >= 1) & (one <= sides))
        places = np.floor(drawer.pairs(PLACE) * (sides - shapes + 1))
        # Where none fits the window lies in the centre.
        places = np.where(is_open, np.round((sides - shapes) / 2), places)
        return np.concatenate([places, shapes]).astype(np.int64)


def put_first_fitting(shapes: Floats, is_open: Booleans, drawn: Drawn, fits: Fits) -> Booleans:
    """Puts the first of ten drawn shapes that fits, in height and width, in the open `shapes`.

    Shapes are (2, N); which of them are open, and are still, is (N,).
    """
    for attempt in range(ATTEMPTS):
        found = drawn(attempt)
        chosen = is_open & fits(found).all(axis=0)
        shapes[:, chosen] = found[:, chosen]
        is_open = is_open & ~chosen
    return is_open


CROPS: Table = {"centre": Centre, "random_resized": RandomResized}


def centred(sizes: Integers, *, crop_pct: float) -> Integers:
    """Returns the window (4, N) in the centre of each image, with `crop_pct` of its short side."""
    side = np.maximum(1, np.round(crop_pct * sizes.min(axis=1))).astype(np.int64)
    above, left = np.round((sizes - side[:, None]).T / 2).astype(np.int64)
    return np.stack([above, left, side, side])
