"""What the random changes share: their numbers, drawn for a whole epoch at once."""

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.config import Config
from tune_speed.data import randomness

if TYPE_CHECKING:
    from torch import Tensor

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Draws = dict[str, Integers]
"""Random numbers by name, (N,) each."""


class Drawer(NamedTuple):
    """The random numbers of an epoch: a function of its seed, its number and a stream's key."""

    num_images: int
    seed: int
    epoch: int
    height: int = 0
    """Of the images, as the recipe trains at [pixels]; 0 where no draw depends on it."""
    width: int = 0
    sizes: Integers | None = None
    """Height and width of each stored image, (N, 2), where a window of it is cut out; else None."""

    def below(self, limit: int, *stream: int) -> Integers:
        """Returns integers in [0, limit), (N,)."""
        if limit == 1:
            return np.zeros(self.num_images, dtype=np.int64)
        return randomness.below(limit, self.seed, self.epoch, *stream, count=self.num_images)

    def bits(self, *stream: int) -> NDArray[np.uint64]:
        """Returns 64 random bits for each image, (N,)."""
        return randomness.bits(self.seed, self.epoch, *stream, count=self.num_images)

    def pairs(self, *stream: int) -> Floats:
        """Returns two numbers in [0, 1) with 32 random bits for each image, (2, N)."""
        bits = self.bits(*stream)
        return np.asarray(
            np.stack([bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)]) * 2.0**-32
        )

    def uniform(self, *stream: int) -> Floats:
        """Returns numbers in [0, 1) with 53 random bits, (N,)."""
        return np.asarray((self.bits(*stream) >> np.uint64(11)) * 2.0**-53)


def as_integers(values: Floats) -> Integers:
    """Returns the bits of numbers, (N,), as float32 has them: so they travel among integers."""
    return values.astype(np.float32).view(np.int32).astype(np.int64)


def as_floats(bits: "Tensor") -> "Tensor":
    """Returns the numbers, float32 (B,), that `as_integers` made such bits of."""
    import torch

    return bits.to(torch.int32).view(torch.float32)


class Change(Config):
    """Base of the changes that act on the images of a batch, each by its own numbers."""

    stream: ClassVar[int]
    """First key of its random streams, a multiple of 100; the next 99 are its own, too."""

    @property
    def is_on(self) -> bool:
        """Whether it changes any image."""
        return True

    def draw(self, drawer: Drawer) -> Draws:
        """Returns its numbers for an epoch; names begin with that of the change."""
        raise NotImplementedError

    def apply(self, images: "Tensor", draws: "dict[str, Tensor]") -> "Tensor":
        """Returns the changed images of a batch, by their numbers (B,); may change them in place.

        Images are float32 (B, C, H, W): for a change of pixels contiguous, with whole values in [0,
        255], which they keep; else normalised.
        """
        raise NotImplementedError
