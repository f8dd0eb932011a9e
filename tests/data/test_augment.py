import itertools

import numpy as np
import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.data.augment import Augmentation, Draws, draw, draw_in_order

SHAPE = (4000, 6, 10)


def epochs(config: Augmentation, count: int, seed: int = 0) -> list[Draws]:
    return [draw(config, SHAPE, seed=seed, epoch=epoch) for epoch in range(count)]


def test_nothing_is_drawn_for_what_is_off() -> None:
    assert not any(values.any() for values in epochs(Augmentation(), 1)[0])


def test_alternating_flip_shows_each_image_both_ways_in_two_epochs() -> None:
    flips = [draws.is_flipped for draws in epochs(Augmentation(flip="alternating"), 4)]
    for before, after in itertools.pairwise(flips):
        assert (before + after == 1).all()
    assert 1900 < flips[0].sum() < 2100  # 3 standard deviations


def test_random_flips_are_independent_between_epochs() -> None:
    flips = np.stack([draws.is_flipped for draws in epochs(Augmentation(flip="random"), 3)])
    for first, second in itertools.combinations(flips, 2):
        assert 1900 < (first == second).sum() < 2100


def test_every_window_and_every_square_comes_up() -> None:
    draws = epochs(Augmentation(pad=2, cutout=3), 1)[0]
    assert set(zip(draws.shift_y, draws.shift_x, strict=True)) == set(
        itertools.product(range(5), range(5))
    )
    assert set(zip(draws.corner_y, draws.corner_x, strict=True)) == set(
        itertools.product(range(4), range(8))
    )


def test_draws_change_with_epoch_and_seed_and_with_nothing_else() -> None:
    config = Augmentation(pad=2, flip="random", affine=0.1, cutout=3)
    first, second = epochs(config, 2)
    for values, later, again, other in zip(
        first, second, epochs(config, 1)[0], epochs(config, 1, seed=1)[0], strict=True
    ):
        assert (values == again).all()
        assert (values != later).any() and (values != other).any()


def test_kinds_of_draws_are_independent() -> None:
    draws = epochs(Augmentation(pad=2, flip="random", affine=0.1, cutout=3), 1)[0]
    correlations = np.corrcoef(np.stack(draws)) - np.eye(6)
    assert abs(correlations).max() < 4 / np.sqrt(4000)


def test_settings_too_large_for_the_images_are_refused_together() -> None:
    with pytest.raises(ConfigError) as caught:
        Augmentation(pad=6, cutout=7).check(height=6, width=10)
    assert [str(problem) for problem in caught.value.problems] == [
        "augmentation.pad: must be at most 5 for images of 6x10 pixels, but got 6.",
        "augmentation.cutout: must be at most 6 for images of 6x10 pixels, but got 7.",
    ]
    Augmentation(pad=5, cutout=6).check(height=6, width=10)


def in_order(config: Augmentation, order: np.ndarray, *, repeats: bool, epoch: int = 0) -> Draws:
    return draw_in_order(config, order, shape=SHAPE, repeats=repeats, seed=0, epoch=epoch)


@pytest.mark.parametrize("flip", ["random", "alternating"])
def test_order_without_repeats_gives_each_image_its_own_draws(flip: str) -> None:
    config = Augmentation(pad=2, flip=flip, cutout=3)
    order = np.random.default_rng(0).permutation(4000)
    by_image = draw(config, SHAPE, seed=0, epoch=3)
    by_position = in_order(config, order, repeats=False, epoch=3)
    assert all((a[order] == b).all() for a, b in zip(by_image, by_position, strict=True))


def test_repeated_image_is_changed_anew_each_time() -> None:
    config = Augmentation(pad=2, flip="random", affine=0.1, cutout=3)
    draws = in_order(config, np.zeros(4000, dtype=np.int64), repeats=True)
    assert set(zip(draws.shift_y, draws.shift_x, strict=True)) == set(
        itertools.product(range(5), range(5))
    )
    assert 1900 < draws.is_flipped.sum() < 2100


def test_alternating_flips_alternate_from_showing_to_showing() -> None:
    config = Augmentation(flip="alternating")
    order = np.random.default_rng(0).integers(0, 20, 200)
    first, second = (
        in_order(config, order, repeats=True, epoch=epoch).is_flipped for epoch in range(2)
    )
    assert (first + second == 1).all()
    for image in range(20):
        assert (np.diff(first[order == image]) != 0).all()
    alone = in_order(config, order, repeats=False).is_flipped
    assert all(first[order == image][0] == alone[order == image][0] for image in range(20))
