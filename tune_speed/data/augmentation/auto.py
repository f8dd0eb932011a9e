"""RandAugment and TrivialAugment: operations drawn for each image."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.config import Table
from tune_speed.data.augmentation.base import (
    Change,
    Drawer,
    Draws,
    Integers,
    as_floats,
    as_integers,
)

if TYPE_CHECKING:
    from torch import Tensor

    Step = tuple[tuple[int, int], Callable[..., Tensor], tuple[Tensor, ...]]

OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("brightness", "contrast", "color", "sharpness"),
    *("posterize", "solarize", "auto_contrast", "equalize"),
)
"""Each is drawn with the same probability; their numbers are places in here."""
MOVES, BLENDS = (1, 5), (6, 8)
"""First and last of those that have a kernel in common."""
WEAKEST = np.array([0.0] * 6 + [1.0] * 4 + [8.0, 1.0, 0.0, 0.0])
"""Amount of each that changes nothing: no shift, a factor of 1, eight bits, a threshold of 1."""
IS_SIGNED = np.arange(len(OPERATIONS)) <= OPERATIONS.index("sharpness")
"""Whether an operation goes either way, each with probability 1/2."""
BINS = 31
"""Magnitudes of an operation, from 0, the weakest, in equal steps to the strongest."""


class Auto(Change):
    """Base of what may be drawn from the operations."""

    stream: ClassVar[int] = 200


class Off(Auto):
    """No operation."""

    @property
    def is_on(self) -> bool:
        return False


class Operations(Auto):
    """Base of what draws from torchvision's fourteen operations."""

    interpolation: Literal["nearest", "bilinear"] = "nearest"
    """How shears, shifts and turns find values between pixels."""

    @property
    def is_on(self) -> bool:
        return True

    @property
    def places(self) -> range:
        """Numbers of the operations that follow one another."""
        return range(1)

    def bins(self, drawer: Drawer, place: int) -> Integers:
        """Returns the magnitude of each image's operation, (N,), in [0, 30]."""
        raise NotImplementedError

    def strongest(self, height: int, width: int) -> NDArray[np.float64]:
        """Returns by how much each operation's amount is changed at most; shifts in pixels."""
        raise NotImplementedError

    def draw(self, drawer: Drawer) -> Draws:
        draws: Draws = {}
        strongest = self.strongest(drawer.height, drawer.width)
        for place in self.places:
            drawn = drawer.below(len(OPERATIONS), self.stream, place)
            signs = 1 - 2 * (drawer.below(2, self.stream + 2, place) & IS_SIGNED[drawn])
            change = strongest[drawn] * self.bins(drawer, place) / (BINS - 1)
            amounts = WEAKEST[drawn] + signs * change
            amounts = np.where(drawn == OPERATIONS.index("posterize"), np.round(amounts), amounts)
            # Whole pixels, as shares of the side: a step may show images at another size.
            for shift, side in (("translate_x", drawer.width), ("translate_y", drawer.height)):
                is_shift = drawn == OPERATIONS.index(shift)
                amounts = np.where(is_shift, np.trunc(amounts) / side, amounts)
            draws |= {f"auto_{place}": drawn, f"auto_amount_{place}": as_integers(amounts)}
        return draws

    def apply(self, images: "Tensor", draws: "dict[str, Tensor]") -> "Tensor":
        from tune_speed.data.augmentation import kernels

        move = partial(kernels.move, mode=self.interpolation)
        for place in self.places:
            kind, amount = draws[f"auto_{place}"], as_floats(draws[f"auto_amount_{place}"])
            steps: tuple[Step, ...] = (
                (MOVES, move, (kind, amount)),
                (BLENDS, kernels.blend, (kind - BLENDS[0], amount)),
                ((9, 9), kernels.sharpen, (amount,)),
                ((10, 10), kernels.posterize, (amount,)),
                ((11, 11), kernels.solarize, (amount,)),
                ((12, 12), kernels.stretch_contrast, ()),
                ((13, 13), kernels.equalize, ()),
            )
            for (first, last), change, numbers in steps:
                chosen = (kind >= first) & (kind <= last)
                images = kernels.among(images, chosen, change, *numbers)
        return images


class RandAugment(Operations):
    """RandAugment: operations drawn one after the other, all of one magnitude.

    Source: Cubuk et al. 2020 (arXiv:1909.13719); torchvision's RandAugment, with its operations,
    magnitudes and black fill. timm's `rand-m9` has other operations and ranges.
    """

    num_ops: int = Field(default=2, ge=1, le=10)
    """Operations that follow one another."""
    magnitude: int = Field(default=9, ge=0, le=BINS - 1)
    """Strength of all operations: 0 is the weakest, 30 the strongest."""

    @property
    def places(self) -> range:
        return range(self.num_ops)

    def bins(self, drawer: Drawer, place: int) -> Integers:
        return np.full(drawer.num_images, self.magnitude)

    def strongest(self, height: int, width: int) -> NDArray[np.float64]:
        shifts = 150 / 331 * np.array([width, height])
        return np.array([0, 0.3, 0.3, *shifts, 30, 0.9, 0.9, 0.9, 0.9, -4, -1, 0, 0])


class TrivialAugment(Operations):
    """TrivialAugment: one operation, of a magnitude that is drawn for each image.

    Source: Müller and Hutter 2021 (arXiv:2103.10158); torchvision's TrivialAugmentWide, with its
    operations, magnitudes and black fill; but its shift of magnitude 15, half of 32 pixels, is
    rounded to 15 there, and 16 here.
    """

    def bins(self, drawer: Drawer, place: int) -> Integers:
        return drawer.below(BINS, self.stream + 1, place)

    def strongest(self, height: int, width: int) -> NDArray[np.float64]:
        return np.array([0, 0.99, 0.99, 32, 32, 135, 0.99, 0.99, 0.99, 0.99, -6, -1, 0, 0])


AUTO: Table = {"off": Off, "rand_augment": RandAugment, "trivial_augment": TrivialAugment}
