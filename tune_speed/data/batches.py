"""What both loaders share: the order of an epoch, and pixels to training batches."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tune_speed.data import image_ops, randomness
from tune_speed.data.augment import Augmentation, draw
from tune_speed.data.base import Images

ORDER = 0
"""Name of the random stream of the sample order, under (seed, epoch)."""


class BatchPlan(NamedTuple):
    """What one batch is made of, on the device; int64, (B,) each."""

    indices: Tensor
    labels: Tensor
    shift_y: Tensor
    shift_x: Tensor
    is_flipped: Tensor
    corner_y: Tensor
    corner_x: Tensor


class Recipe:
    pass
