"""Colour jitter, RandAugment, TrivialAugment and erasing: changes that are drawn for each image."""

import math
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from tune_speed.core.config import Table
from tune_speed.data.augmentation import base
from tune_speed.data.augmentation.crops import put_first_fitting

if TYPE_CHECKING:
    from torch import Tensor

OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate"),
    *("sharpness", "posterize", "solarize", "auto_contrast", "equalize"),
    *("brightness", "contrast", "saturation", "hue"),
)
"""By their numbers, which `kernels.KERNELS` has too."""
DRAWN = len(OPERATIONS) - 1
"""The first fourteen are drawn by RandAugment and TrivialAugment, all as often."""
POSTERIZE, BRIGHTNESS, HUE = map(OPERATIONS.index, ("posterize", "brightness", "hue"))
WEAKEST = np.array([0.0] * 6 + [1.0, 8.0, 1.0, 0.0, 0.0] + [1.0] * 3 + [0.0])
"""Amount of each that changes nothing: a factor of 1, eight bits, a threshold of 1."""
IS_SIGNED = np.array([0] + [1] * 6 + [0] * 4 + [1] * 4)
"""Whether an operation goes either way, each with probability 1/2."""
BINS = 31
"""Magnitudes, from 0, the weakest, in equal steps to 30, the strongest."""


Drawn = tuple[base.Integers, base.Floats]
"""Numbers of operations and their amounts, (N,) each."""


class Operations(base.Change):
    """Base of changes that are operations, one after the other, each with an amount."""

    @property
    def kinds(self) -> range:
        """The numbers of its operations; the first may be the one that changes nothing."""
        return range(DRAWN)

    def drawn(self, drawer: base.Drawer) -> list[Drawn]:
        """Returns its operations, in their order."""
        raise NotImplementedError

    def draw(self, drawer: base.Drawer) -> base.Draws:
        draws: base.Draws = {}
        for place, (kinds, amounts) in enumerate(self.drawn(drawer)):
            draws[f"{self.stream}_kind_{place}"] = kinds
            draws[f"{self.stream}_amount_{place}"] = base.as_integers(amounts)
        return draws

    def apply(self, images: "Tensor", draws: "dict[str, Tensor]") -> "Tensor":
        from tune_speed.data.augmentation import kernels

        mode = getattr(self, "interpolation", "nearest")
        rows = [row for name, row in draws.items() if name.startswith(f"{self.stream}_")]
        for kind, amount in zip(rows[::2], rows[1::2], strict=True):
            images = kernels.operate(
                images, kind, base.as_floats(amount), among=self.kinds, mode=mode
            )
        return images


class Off(base.Change):
    """No operation."""

    @property
    def is_on(self) -> bool:
        return False


class FromList(Operations):
    """Base of what draws from the first fourteen operations."""

    interpolation: Literal["nearest", "bilinear"] = "nearest"
    """How shears, shifts and turns find values between pixels."""

    def one(
        self, drawer: base.Drawer, place: int, bins: base.Integers, strongest: base.Floats
    ) -> Drawn:
        """Returns an operation for each image, of the magnitudes `bins` (N,).

        The amount of magnitude m is a + s b m / 30, with a of `WEAKEST`, b of `strongest` (14,) and
        s = ±1. Shifts are in pixels, cut off to whole ones.
        """
        kinds = drawer.below(DRAWN, self.stream, place)
        signs = 1 - 2 * (drawer.below(2, self.stream + 2, place) & IS_SIGNED[kinds])
        amounts = WEAKEST[kinds] + signs * strongest[kinds] * bins / (BINS - 1)
        amounts = np.where(kinds == POSTERIZE, np.round(amounts), amounts)
        # As shares of the side: a step may show images at another size.
        sides = np.array([0, 0, 0, drawer.width, drawer.height] + [0] * (DRAWN - 5))[kinds]
        return kinds, np.where(sides, np.trunc(amounts) / np.maximum(sides, 1), amounts)


class RandAugment(FromList):
    """RandAugment: operations drawn one after the other, all of one magnitude.

    Source: Cubuk et al. 2020 (arXiv:1909.13719); torchvision's RandAugment, with its operations,
    magnitudes and black fill. timm's `rand-m9` has other operations and ranges.
    """

    stream: ClassVar[int] = 200

    num_ops: int = Field(default=2, ge=1, le=10)
    """Operations that follow one another."""
    magnitude: int = Field(default=9, ge=0, le=BINS - 1)
    """Strength of all operations: 0 is the weakest, 30 the strongest."""

    def drawn(self, drawer: base.Drawer) -> list[Drawn]:
        bins = np.full(drawer.num_images, self.magnitude)
        shifts = 150 / 331 * np.array([drawer.width, drawer.height])
        strongest = np.array([0, 0.3, 0.3, *shifts, 30, 0.9, -4, -1, 0, 0, 0.9, 0.9, 0.9])
        places = range(self.num_ops)
        return [self.one(drawer, place, bins, strongest) for place in places]


class TrivialAugment(FromList):
    """TrivialAugment: one operation, of a magnitude that is drawn for each image.

    Source: Müller and Hutter 2021 (arXiv:2103.10158); torchvision's TrivialAugmentWide, with its
    operations, magnitudes and black fill. Shifts and thresholds that are whole by the formula are
    so here; rounding makes 15 of 16 pixels, and 120 of the thresholds' 119 there.
    """

    stream: ClassVar[int] = 300

    def drawn(self, drawer: base.Drawer) -> list[Drawn]:
        bins = drawer.below(BINS, self.stream + 1)
        strongest = np.array([0, 0.99, 0.99, 32, 32, 135, 0.99, -6, -1, 0, 0, 0.99, 0.99, 0.99])
        return [self.one(drawer, 0, bins, strongest)]


AUTO: Table = {"off": Off, "rand_augment": RandAugment, "trivial_augment": TrivialAugment}


class ColorJitter(Operations):
    """Random brightness, contrast, saturation and hue, one after the other in a random order.

    Each of the first three is a blend f x + (1 - f) x', cut off to [0, 255], with f uniform in
    [max(0, 1 - b), 1 + b] for its field b. x' is 0 for brightness, the mean of the grey image for
    contrast, the grey image for saturation. Hue turns the circle of hues by a share of it that is
    uniform in ± its field. Images of other than three channels have their mean as grey, and no hue.

    Source: torchvision's ColorJitter. timm's `--color-jitter 0.4` sets the first three to 0.4, and
    with `--color-jitter-prob` each image is changed with that probability.
    """

    stream: ClassVar[int] = 100
    switch_fields = frozenset({"brightness", "contrast", "saturation", "hue", "probability"})

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
        return self.probability > 0 and self.model_copy(update={"probability": 1.0}) != type(self)()

    @property
    def kinds(self) -> range:
        return range(BRIGHTNESS, HUE + (self.hue > 0))

    def drawn(self, drawer: base.Drawer) -> list[Drawn]:
        is_changed = drawer.uniform(self.stream + 1) < self.probability
        most = np.array([self.brightness, self.contrast, self.saturation, self.hue])
        steps, weakest = np.flatnonzero(most), WEAKEST[BRIGHTNESS:]
        amounts = np.zeros((4, drawer.num_images))
        for step in steps:
            least = -most[step] if step == 3 else max(0.0, 1 - most[step])
            width = weakest[step] + most[step] - least
            amounts[step] = least + width * drawer.uniform(self.stream + 2, int(step))
        orders = np.array([*permutations(steps)])
        kinds = orders[drawer.below(len(orders), self.stream)].T
        images = np.arange(drawer.num_images)
        return [
            (np.where(is_changed, BRIGHTNESS + kind, 0), amounts[kind, images]) for kind in kinds
        ]


RECTANGLE = ("erase_y", "erase_x", "erase_h", "erase_w")
NOISE = "erase_noise"


class Erasing(base.Change):
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

    def draw(self, drawer: base.Drawer) -> base.Draws:
        sides = np.array([[drawer.height], [drawer.width]], dtype=np.float64)
        shapes = np.zeros((2, drawer.num_images))

        def drawn(attempt: int) -> base.Floats:
            shares = drawer.uniform(self.stream + 1, attempt)
            areas = sides.prod() * (self.min_area + (self.max_area - self.min_area) * shares)
            turns = 2 * drawer.uniform(self.stream + 2, attempt) - 1
            ratios = np.exp(turns * math.log(self.ratio))
            return np.asarray(np.sqrt(np.stack([areas * ratios, areas / ratios])).round())

        is_chosen = drawer.uniform(self.stream) < self.probability
        put_first_fitting(shapes, is_chosen, drawn, lambda one: one < sides)
        corners = np.stack([drawer.uniform(self.stream + 3), drawer.uniform(self.stream + 4)])
        places = np.floor(corners * (sides - shapes + 1))
        # Shares of the sides: a step may show images at another size.
        rows = np.concatenate([places / sides, shapes / sides])
        draws = {name: base.as_integers(row) for name, row in zip(RECTANGLE, rows, strict=True)}
        if self.mode != "const":
            draws[NOISE] = drawer.below(2**32, self.stream + 5)
        return draws

    def apply(self, images: "Tensor", draws: "dict[str, Tensor]") -> "Tensor":
        import torch

        from tune_speed.data.augmentation import kernels

        rectangles = torch.stack([base.as_floats(draws[name]) for name in RECTANGLE], 1)
        noise = draws.get(NOISE, draws[RECTANGLE[0]])
        erase = partial(kernels.erase, mode=self.mode)
        return kernels.where(rectangles[:, -1] > 0, erase, images, rectangles, noise)
