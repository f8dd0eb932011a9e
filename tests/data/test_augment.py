import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from helpers.components.references import changed_by_scipy
from torch._subclasses.fake_tensor import FakeTensorMode

from tune_speed.core.errors import ConfigError
from tune_speed.data.augmentation.base import Drawer, Draws
from tune_speed.data.augmentation.config import Augmentation, draw, draw_in_order
from tune_speed.data.loaders import image_ops

DRAWER = Drawer(4000, 0, 0, 6, 10)


def epochs(config: Augmentation, count: int, seed: int = 0) -> list[Draws]:
    return [draw(config, DRAWER._replace(seed=seed, epoch=epoch)) for epoch in range(count)]


def test_nothing_is_drawn_for_what_is_off() -> None:
    assert not epochs(Augmentation(), 1)[0]


def test_alternating_flip_shows_each_image_both_ways_in_two_epochs() -> None:
    flips = [draws["is_flipped"] for draws in epochs(Augmentation(flip="alternating"), 4)]
    for before, after in itertools.pairwise(flips):
        assert (before + after == 1).all()
    assert 1900 < flips[0].sum() < 2100  # 3 standard deviations


def test_random_flips_are_independent_between_epochs() -> None:
    flips = np.stack([draws["is_flipped"] for draws in epochs(Augmentation(flip="random"), 3)])
    for first, second in itertools.combinations(flips, 2):
        assert 1900 < (first == second).sum() < 2100


def test_every_window_and_every_square_comes_up() -> None:
    draws = epochs(Augmentation(pad=2, cutout=3), 1)[0]
    assert set(zip(draws["shift_y"], draws["shift_x"], strict=True)) == set(
        itertools.product(range(5), range(5))
    )
    assert set(zip(draws["corner_y"], draws["corner_x"], strict=True)) == set(
        itertools.product(range(4), range(8))
    )


def test_draws_change_with_epoch_and_seed_and_with_nothing_else() -> None:
    config = Augmentation(pad=2, flip="random", affine=0.1, cutout=3)
    first, second = epochs(config, 2)
    again, other = epochs(config, 1)[0], epochs(config, 1, seed=1)[0]
    for name, values in first.items():
        assert (values == again[name]).all()
        assert (values != second[name]).any() and (values != other[name]).any()


def test_kinds_of_draws_are_independent() -> None:
    draws = epochs(Augmentation(pad=2, flip="random", affine=0.1, cutout=3), 1)[0]
    correlations = np.corrcoef(np.stack([*draws.values()])) - np.eye(6)
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
    return draw_in_order(config, order, DRAWER._replace(epoch=epoch), repeats=repeats)


@pytest.mark.parametrize("flip", ["random", "alternating"])
def test_order_without_repeats_gives_each_image_its_own_draws(flip: str) -> None:
    config = Augmentation(pad=2, flip=flip, cutout=3)
    order = np.random.default_rng(0).permutation(4000)
    by_image = draw(config, DRAWER._replace(epoch=3))
    by_position = in_order(config, order, repeats=False, epoch=3)
    assert all((by_image[name][order] == by_position[name]).all() for name in by_image)


def test_repeated_image_is_changed_anew_each_time() -> None:
    config = Augmentation(pad=2, flip="random", affine=0.1, cutout=3)
    draws = in_order(config, np.zeros(4000, dtype=np.int64), repeats=True)
    assert set(zip(draws["shift_y"], draws["shift_x"], strict=True)) == set(
        itertools.product(range(5), range(5))
    )
    assert 1900 < draws["is_flipped"].sum() < 2100


def test_alternating_flips_alternate_from_showing_to_showing() -> None:
    config = Augmentation(flip="alternating")
    order = np.random.default_rng(0).integers(0, 20, 200)
    first, second = (
        in_order(config, order, repeats=True, epoch=epoch)["is_flipped"] for epoch in range(2)
    )
    assert (first + second == 1).all()
    for image in range(20):
        assert (np.diff(first[order == image]) != 0).all()
    alone = in_order(config, order, repeats=False)["is_flipped"]
    assert all(first[order == image][0] == alone[order == image][0] for image in range(20))


Pixels = Callable[..., np.ndarray]


def ints(low: int, high: int, count: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(low + high).integers(low, high, count))


def test_affine_changes_are_scipys():
    images = torch.rand(40, 7, 9, 3, generator=torch.Generator().manual_seed(1))
    entries = torch.from_numpy(np.random.default_rng(0).integers(0, 1 << 60, 40))
    changed = image_ops.change_affinely(images, entries, most=0.4)
    assert changed.is_contiguous()
    for image, numbers, found in zip(images.numpy(), entries, changed.numpy(), strict=True):
        expected = changed_by_scipy(image, numbers, most=0.4)
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("pad", [0, 1, 4])
def test_moved_images_equal_padding_cropping_and_flipping_one_by_one(random_pixels, channels, pad):
    pixels = random_pixels(30, 5, 7, channels)
    indices, flips = ints(0, 30, 50), ints(0, 2, 50)
    shift_y, shift_x = ints(0, 2 * pad + 1, 50), ints(0, 2 * pad + 2, 50) % (2 * pad + 1)
    move = image_ops.Mover(5, 7, pad=pad, device=torch.device("cpu"))
    moved = move(
        torch.from_numpy(pixels), indices, shift_y=shift_y, shift_x=shift_x, is_flipped=flips
    )
    for i, y, x, flip, image in zip(indices, shift_y, shift_x, flips, moved, strict=True):
        padded = np.pad(pixels[i], [(pad, pad), (pad, pad), (0, 0)], mode="reflect")
        window = padded[y : y + 5, x : x + 7]
        assert np.array_equal(image.numpy(), window[:, ::-1] if flip else window)


@pytest.mark.parametrize("side", [1, 3, 5])
def test_cutout_zeroes_one_whole_square_and_nothing_else(side: int) -> None:
    images = torch.rand(40, 5, 7, 3) + 1
    expected = images.numpy().copy()
    corner_y, corner_x = ints(0, 5 - side + 1, 40), ints(0, 7 - side + 1, 40)
    for image, y, x in zip(expected, corner_y, corner_x, strict=True):
        image[y : y + side, x : x + side] = 0
    result = image_ops.cut_out(images, side=side, corner_y=corner_y, corner_x=corner_x)
    assert np.array_equal(result.numpy(), expected)
    assert (result == 0).sum() == 40 * side * side * 3


def test_normalised_images_match_float64(random_pixels: Pixels) -> None:
    pixels = random_pixels(8, 5, 7, 3)
    mean, std = (0.49, 0.48, 0.0), (0.25, 0.01, 1.0)
    normalize = image_ops.Normalizer(mean, std, 5 * 7, torch.device("cpu"))
    images = normalize(torch.from_numpy(pixels))
    exact = (pixels.astype(np.float64) / 255 - mean) / std
    assert images.dtype == torch.float32
    # Values up to 1 / std = 100, in float32: three roundings of 6e-8 relative.
    assert np.allclose(images.numpy(), exact, rtol=0, atol=2e-5)
    assert np.allclose(images.numpy()[..., 2], exact[..., 2], rtol=0, atol=2e-7)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_layout_is_the_one_asked_for(channels: int, channels_last: bool) -> None:
    images = torch.rand(4, 5, 7, channels)
    turned = image_ops.to_channels_first(images, channels_last=channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    like = torch.empty(4, channels, 5, 7, memory_format=layout)
    assert turned.shape == like.shape and turned.stride() == like.stride()
    assert np.array_equal(turned.numpy(), images.numpy().transpose(0, 3, 1, 2))


def test_nothing_waits_for_the_device_or_stays_on_the_host() -> None:
    # Fake tensors have shapes and devices but no values: what needs a value on the host, or mixes
    # devices, is an error.
    with FakeTensorMode():
        device = torch.device("cuda")
        pixels = torch.empty(50, 6, 7, 3, dtype=torch.uint8, device=device)
        zeros = torch.zeros(16, dtype=torch.int64, device=device)
        normalize = image_ops.Normalizer((0.5,) * 3, (0.5,) * 3, 6 * 7, device)
        move = image_ops.Mover(6, 7, pad=2, device=device)
        moved = move(pixels, zeros, shift_y=zeros, shift_x=zeros, is_flipped=zeros)
        images = image_ops.cut_out(normalize(moved), side=3, corner_y=zeros, corner_x=zeros)
        batch = image_ops.to_channels_first(images, channels_last=False)
    assert batch.device.type == "cuda" and batch.shape == (16, 3, 6, 7)
