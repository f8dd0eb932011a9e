"""Colour jitter: random brightness, contrast, saturation and hue, in a random order."""

from itertools import permutations
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from tune_speed.data.augmentation.base import Change, Drawer, Draws, as_floats, as_integers

if TYPE_CHECKING:
    from torch import Tensor

STEPS = ("brightness", "contrast", "saturation", "hue")
ORDERS = np.array([sum(step << 2 * i for i, step in enumerate(p)) for p in permutations(range(4))])
"""The 24 orders of the steps: two bits for each, that of the first the lowest."""


class ColorJitter(Change):
    """Random brightness, contrast, saturation and hue, one after the other in a random order.

    Each of the first three is a blend f x + (1 - f) x', cut off to [0, 255], with f uniform in
    [max(0, 1 - b), 1 + b] for its field b. x' is 0 for brightness, the mean of the grey image for
    contrast, the grey image for saturation. Hue turns the circle of hues by a share of it that is
    uniform in ± its field. Images of other than three channels have their mean as grey, and no hue.

    Source: torchvision's ColorJitter. timm's `--color-jitter 0.4` sets the first three to 0.4, and
    with `--color-jitter-prob` each image is changed with that probability.
    """

    stream: ClassVar[int] = 100
    switch_fields = frozenset({*STEPS, "probability"})

    brightness: float = Field(default=0.0, ge=0, le=10)
    """Largest difference of the brightness factor from 1; 0: no change."""
    contrast: float = Field(default=0.0, ge=0, le=10)
    """Largest difference of the contrast factor from 1; 0: no change."""
    saturation: float = Field(default=0.0, ge=0, le=10)
    """Largest difference of the saturation factor from 1; 0: no change."""
    hue: float = Field(default=0.0, ge=0, le=0.5)
    """Largest turn of the hue, in turns of the circle; 0: no change."""
    probability: float = Field(default=1.0, ge=0, le=1)
    """Probability that an image is changed."""

    @property
    def is_on(self) -> bool:
        return self.probability > 0 and any(getattr(self, step) for step in STEPS)

    def draw(self, drawer: Drawer) -> Draws:
        draws = {"jitter_order": ORDERS[drawer.below(len(ORDERS), self.stream)]}
        is_changed = drawer.uniform(self.stream + 1) < self.probability
        for number, step in enumerate(STEPS):
            if most := getattr(self, step):
                centre = 0.0 if step == "hue" else 1.0
                least = -most if step == "hue" else max(0.0, 1 - most)
                drawn = least + (centre + most - least) * drawer.uniform(self.stream + 2, number)
                draws[f"jitter_{step}"] = as_integers(np.where(is_changed, drawn, centre))
        return draws

    def apply(self, images: "Tensor", draws: "dict[str, Tensor]") -> "Tensor":
        import torch

        from tune_speed.data.augmentation import kernels

        numbers = {s: as_floats(draws[f"jitter_{s}"]) for s in STEPS if getattr(self, s)}
        for place in range(len(STEPS)):
            step = draws["jitter_order"] >> 2 * place & 3
            factor = torch.ones(len(images), device=images.device)
            for number, name in enumerate(STEPS[:3]):
                if name in numbers:
                    factor = torch.where(step == number, numbers[name], factor)
            images = kernels.among(images, factor != 1, kernels.blend, step, factor)
            if "hue" in numbers:
                turn = torch.where(step == STEPS.index("hue"), numbers["hue"], 0.0)
                images = kernels.among(images, turn != 0, kernels.turn_hue, turn)
        return images
