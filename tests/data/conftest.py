"""Small data sets in memory."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tune_speed.data.base import Images
from tune_speed.data.cache import PreparedData


@pytest.fixture
def random_pixels() -> Callable[..., np.ndarray]:
    rng = np.random.default_rng(7)
    return lambda *shape: rng.integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def make_data(random_pixels: Callable[..., np.ndarray]) -> Callable[..., PreparedData]:
    def make(counts: Sequence[int], *, num_test: int | None = None, size: int = 4) -> PreparedData:
        labels = np.random.default_rng(3).permutation(np.repeat(np.arange(len(counts)), counts))
        train = Images(random_pixels(len(labels), size, size, 3), labels)
        test = None
        if num_test is not None:
            test = Images(random_pixels(num_test, size, size, 3), np.arange(num_test) % len(counts))
        return PreparedData(train, test, tuple(map(str, range(len(counts)))), "cafe")

    return make
