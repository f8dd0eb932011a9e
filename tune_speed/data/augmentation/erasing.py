"""Random erasing: a rectangle of an image gets other values."""

import math
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.data.augmentation.base import Change, Drawer, Draws, as_floats, as_integers

if TYPE_CHECKING:
    from torch import Tensor

ATTEMPTS = 10
RECTANGLE = ("erase_y", "erase_x", "erase_h", "erase_w")
NOISE = "erase_noise"


class Erasing(Change):
    """Random erasing: a rectangle of the normalised image gets the mean's value, 0, or noise.

    The rectangle's share of the area is uniform between min_area and max_area, the logarithm of its
    ratio of height to width in ± ln(ratio). Ten are drawn, and the first that is lower and narrower
    than the image is taken, anywhere in it; if none is, nothing is erased.

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
            draws[NOISE] = drawer.below(2**32, self.stream + 5)
        return draws

    def _shapes(self, area: float, drawer: Drawer, attempt: int) -> NDArray[np.float64]:
        """Returns height and width of a drawn rectangle for each image, whole numbers, (2, N)."""
        shares = drawer.uniform(self.stream + 1, attempt)
        areas = area * (self.min_area + (self.max_area - self.min_area) * shares)
        turns = 2 * drawer.uniform(self.stream + 2, attempt) - 1
        ratios: NDArray[np.float64] = np.exp(turns * math.log(self.ratio))
        shapes: NDArray[np.float64] = np.sqrt(np.stack([areas * ratios, areas / ratios]))
        return shapes.round()

    def apply(self, images: "Tensor", draws: "dict[str, Tensor]") -> "Tensor":
        import torch

        from tune_speed.data.augmentation import kernels

        rectangles = torch.stack([as_floats(draws[name]) for name in RECTANGLE], 1)
        noise = draws.get(NOISE, draws[RECTANGLE[0]])
        erase = partial(kernels.erase, mode=self.mode)
        return kernels.where(rectangles[:, -1] > 0, erase, images, rectangles, noise)
