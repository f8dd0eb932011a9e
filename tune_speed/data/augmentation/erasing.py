"""Random erasing: a rectangle of an image gets other values."""

import math
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tune_speed.data.augmentation.base import Change, Drawer, Draws, as_floats, as_integers

if TYPE_CHECKING:
    from torch import Tensor

ATTEMPTS = 10
WORD = 2**32 - 1
RECTANGLE = ("erase_y", "erase_x", "erase_h", "erase_w")
NOISE = "erase_noise"


class Erasing(Change):
    """Random erasing: a rectangle of the normalised image gets the mean's value, 0, or noise.

    The rectangle's share of the area is uniform in [min_area, max_area], the logarithm of its ratio
    of height to width in ± ln(ratio). Ten are drawn, and the first that is lower and narrower than
    the image is taken, anywhere in it; if none is, nothing is erased.

    Source: Zhong et al. 2017 (arXiv:1708.04896); timm's RandomErasing, `--reprob` and `--remode`.
    """

    stream: ClassVar[int] = 300
    switch_fields = frozenset({"probability"})
    untimed_fields = frozenset({"min_area", "max_area", "ratio"})

    probability: float = Field(default=0.0, ge=0, le=1)
    """Probability that a rectangle of an image is erased; 0: none is."""
    mode: Literal["const", "rand", "pixel"] = "const"
    """What an erased pixel gets, as timm names it: 0; a normal number for each channel of the
    rectangle; or one for each value."""
    min_area: float = Field(default=0.02, gt=0, lt=1)
    """Least share of the image's area."""
    max_area: float = Field(default=1 / 3, gt=0, lt=1)
    """Largest share of the image's area."""
    ratio: float = Field(default=1 / 0.3, ge=1, le=10)
    """Largest ratio of height to width; the least is 1 / ratio."""

    @model_validator(mode="after")
    def _areas_are_in_order(self) -> Self:
        if self.min_area > self.max_area:
            raise ValueError("min_area must be at most max_area")
        return self

    @property
    def is_on(self) -> bool:
        return self.probability > 0

    def draw(self, drawer: Drawer) -> Draws:
        sides = np.array([[drawer.height], [drawer.width]], dtype=np.float64)
        is_open = drawer.uniform(self.stream) < self.probability
        shapes = np.zeros((2, drawer.num_images))
        for attempt in range(ATTEMPTS):
            drawn = self._shapes(sides.prod(), drawer, attempt)
            fits = is_open & (drawn < sides).all(axis=0)
            shapes[:, fits] = drawn[:, fits]
            is_open &= ~fits
        drawn = np.stack([drawer.uniform(self.stream + 3), drawer.uniform(self.stream + 4)])
        places = np.floor(drawn * (sides - shapes + 1))
        # Shares of the sides: a step may show images at another size.
        rows = np.concatenate([places / sides, shapes / sides])
        draws = {name: as_integers(row) for name, row in zip(RECTANGLE, rows, strict=True)}
        if self.mode != "const":
            draws[NOISE] = drawer.below(WORD + 1, self.stream + 5)
        return draws

    def _shapes(self, area: float, drawer: Drawer, attempt: int) -> NDArray[np.float64]:
        """Returns height and width of a drawn rectangle for each image, whole numbers, (2, N)."""
        shares = drawer.uniform(self.stream + 1, attempt)
        areas = area * (self.min_area + (self.max_area - self.min_area) * shares)
        turns = 2 * drawer.uniform(self.stream + 2, attempt) - 1
        ratios = np.exp(turns * math.log(self.ratio))
        return np.round(np.sqrt(np.stack([areas * ratios, areas / ratios])))

    def apply(self, images: "Tensor", draws: "dict[str, Tensor]") -> "Tensor":
        if images.device.type != "cpu":
            return self.by_masks(images, draws)
        places = _places_in(images)
        top, left, height, width = _rectangles(images, draws)
        for index in height.nonzero()[:, 0].tolist():
            rows = slice(int(top[index]), int(top[index] + height[index]))
            columns = slice(int(left[index]), int(left[index] + width[index]))
            image, noise = images[index], draws.get(NOISE, top)[index]
            image[:, rows, columns] = self._values(noise, places[:, rows, columns])
        return images

    def by_masks(self, images: "Tensor", draws: "dict[str, Tensor]") -> "Tensor":
        """Returns what `apply` does, without a loop over images and without a wait."""
        import torch

        top, left, height, width = _rectangles(images, draws)
        is_row = _between(top, height, images.shape[2])[:, None, :, None]
        is_column = _between(left, width, images.shape[3])[:, None, None, :]
        noise = draws.get(NOISE, top)[:, None, None, None]
        values = self._values(noise, _places_in(images)).expand_as(images)
        return torch.where(is_row & is_column, values, images)

    def _values(self, noise: "Tensor", places: "Tensor") -> "Tensor":
        """Returns what erased pixels get: a function of an image's number and a pixel's place."""
        import torch

        if self.mode == "const":
            return torch.zeros((), device=noise.device)
        if self.mode == "rand":
            places = torch.arange(len(places), device=noise.device)[:, None, None]
        # 23 bits, each number in the middle of its interval, as fp32 has them.
        words = _hashed(_hashed(places) ^ noise) >> 9
        return torch.erfinv((words * 2 + 1) * 2.0**-23 - 1) * math.sqrt(2)


def _rectangles(images: "Tensor", draws: "dict[str, Tensor]") -> "list[Tensor]":
    """Returns upper edge, left edge, height and width of each image's rectangle [pixels], (B,)."""
    sides = images.shape[2:] * 2
    return [
        (as_floats(draws[name]) * side).round_().long()
        for name, side in zip(RECTANGLE, sides, strict=True)
    ]


def _places_in(images: "Tensor") -> "Tensor":
    """Returns a number for each value of an image, (C, H, W)."""
    import torch

    _, *shape = images.shape
    return torch.arange(math.prod(shape), device=images.device).view(shape)


def _between(first: "Tensor", length: "Tensor", size: int) -> "Tensor":
    import torch

    places = torch.arange(size, device=first.device)
    return (places >= first[:, None]) & (places < (first + length)[:, None])


def _hashed(words: "Tensor") -> "Tensor":
    """Returns 32 mixed bits of 32 bits; two inputs never give the same.

    Source: C. Wellons 2018, Prospecting for Hash Functions, `lowbias32`.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = (words ^ words >> shift) * factor & WORD
    return words ^ words >> 16
