import numpy as np
from sklearn.datasets import load_digits

from tune_speed.data.datasets.builtin import Digits


def decode(scale: int) -> np.ndarray:
    return Digits(scale=scale).decode(download=False, on_progress=lambda *_: None).train.pixels


def test_digits_are_those_of_scikit_learn_stretched_to_a_byte() -> None:
    pixels, levels = decode(scale=1)[..., 0], load_digits().images
    assert set(zip(levels.ravel(), pixels.ravel(), strict=True)) == {
        (level, round(level * 255 / 16)) for level in range(17)
    }


def test_scale_repeats_each_pixel() -> None:
    small, large = decode(scale=1), decode(scale=3)
    assert large.shape == (1797, 24, 24, 1)
    for y, x in ((0, 0), (1, 2), (2, 1)):
        assert np.array_equal(large[:, y::3, x::3], small)
