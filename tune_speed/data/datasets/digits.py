"""Handwritten digits, 8x8 pixels, that come with scikit-learn: nothing to download."""

from pathlib import Path

import numpy as np
from pydantic import Field

from tune_speed.data.base import DatasetConfig, DecodedData, Images, OnProgress

NUM_IMAGES = 1797


class Digits(DatasetConfig):
    """1,797 handwritten digits in 10 classes, 8x8 pixels, one channel; no test part of its own.

    Source: E. Alpaydin, C. Kaynak 1998 (UCI Optical Recognition of Handwritten Digits), through
    `sklearn.datasets.load_digits`.
    """

    scale: int = Field(default=1, ge=1, le=8)
    """Factor by which each pixel is repeated in both directions: 4 gives 32x32 images."""

    def num_train(self) -> int:
        return NUM_IMAGES

    def num_test(self) -> int | None:
        return None

    def sources(self) -> list[Path]:
        """Returns nothing: the images never change."""
        return []

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        """Returns the digits, their 0 to 16 stretched to 0 to 255."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * 255 / 16).astype(np.uint8)[..., None]
        pixels = pixels.repeat(self.scale, axis=1).repeat(self.scale, axis=2)
        on_progress(len(pixels), NUM_IMAGES)
        train = Images(pixels, digits.target.astype(np.int64))
        return DecodedData(train, None, tuple(str(name) for name in digits.target_names))
