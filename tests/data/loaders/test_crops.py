import math

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from tune_speed.core.errors import ConfigError
from tune_speed.data.augmentation.base import Drawer
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.augmentation.crops import Centre, RandomResized, centred
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Batching
from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.data.loaders.image_ops import by_products, cut
from tune_speed.data.loaders.resident import View, eval_batches
from tune_speed.data.orders import SampleOrder

CPU = torch.device("cpu")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
BOX = (60, 80)


@pytest.fixture
def photos() -> Images:
    """Returns smooth images of several sizes, in the upper left corners of boxes."""
    rng = np.random.default_rng(0)
    sizes = np.array([[60, 45], [45, 60], [45, 80], [50, 50]] * 6)
    pixels = np.zeros((len(sizes), *BOX, 3), np.uint8)
    for box, (height, width) in zip(pixels, sizes, strict=True):
        coarse = torch.from_numpy(rng.integers(0, 256, (3, 9, 9), dtype=np.uint8))
        box[:height, :width] = functional.resize(coarse, [height, width]).permute(1, 2, 0)
    return Images(pixels, np.arange(len(sizes)), sizes)


def windows_of(sizes: np.ndarray, seed: int = 0) -> np.ndarray:
    return RandomResized().windows(sizes, Drawer(len(sizes), seed, 0))


@pytest.mark.parametrize("size", [(16, 16), (32, 24), (96, 96)])
def test_windows_have_the_pixels_of_torchvisions_resized_crop(photos, size):
    windows = windows_of(photos.sizes)
    found = cut(torch.from_numpy(photos.pixels), torch.from_numpy(windows), size)
    for image, box, (top, left, height, width) in zip(
        found, photos.pixels, windows.T.tolist(), strict=True
    ):
        whole = torch.from_numpy(box).permute(2, 0, 1)
        theirs = functional.resized_crop(whole, top, left, height, width, list(size))
        difference = (image.permute(2, 0, 1).int() - theirs.int()).abs()
        assert difference.max() == 0


@pytest.mark.parametrize("size", [(16, 16), (32, 24), (96, 96)])
def test_matrix_products_give_the_same_pixels_but_for_values_that_lie_halfway(photos, size):
    pixels, windows = torch.from_numpy(photos.pixels), torch.from_numpy(windows_of(photos.sizes))
    flips = torch.arange(len(pixels)) % 2
    ours = by_products(pixels, windows, size, is_flipped=flips)
    theirs = cut(pixels, windows, size, is_flipped=flips)
    difference = (ours.int() - theirs.int()).abs().float()
    assert difference.max() <= 1 and difference.mean() < 0.3


def test_flipped_windows_of_some_images_are_mirror_images(photos):
    pixels, windows = torch.from_numpy(photos.pixels), torch.from_numpy(windows_of(photos.sizes))
    some = torch.tensor([3, 1, 3])
    plain = cut(pixels, windows, (16, 16))[some]
    flips = torch.tensor([1, 0, 0])
    found = cut(pixels, windows[:, some], (16, 16), indices=some, is_flipped=flips)
    assert torch.equal(found[0], plain[0].flip(1)) and torch.equal(found[1:], plain[1:])


def torchvisions_windows(size: tuple[int, int], count: int) -> np.ndarray:
    torch.manual_seed(0)
    image = torch.empty(3, *size)
    transform = v2.RandomResizedCrop(8)
    drawn = [transform.make_params([image]) for _ in range(count)]
    return np.array([[each[name] for name in ("top", "left", "height", "width")] for each in drawn])


@pytest.mark.parametrize("size", [(60, 80), (40, 150)])
def test_random_windows_are_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    count = 3000
    ours = windows_of(np.array([size] * count)).T
    theirs = torchvisions_windows(size, count)
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 1e-3
    areas, ratios = ours[:, 2] * ours[:, 3], ours[:, 3] / ours[:, 2]
    assert areas.min() >= 0.07 * math.prod(size) and 0.6 < ratios.min() < ratios.max() < 1.7
    assert (ours[:, :2] >= 0).all() and (ours[:, :2] + ours[:, 2:] <= size).all()


def test_an_image_without_a_fitting_window_shows_the_largest_allowed_in_its_centre() -> None:
    ((top, left, height, width),) = windows_of(np.array([[10, 1000]])).T.tolist()
    assert (height, width) == (10, 13) and (top, left) in {(0, 493), (0, 494)}


def batches_of(loader, images, **changes):
    order = SampleOrder(len(images.labels), changes.pop("batch_size", 8), 1)
    opened = loader.open(images, Batching(order, MEAN, STD, CPU, image_size=24, **changes))
    found = {}
    for batch, labels in opened.epoch(3):
        found |= dict(zip(labels.tolist(), batch, strict=True))
    opened.close()
    return found


@pytest.mark.parametrize("other", [Streaming(), Streaming(workers=2)])
@pytest.mark.parametrize("pad", [0, 2])
def test_an_image_is_the_same_with_every_loader_and_batch_size(photos, other, pad):
    changes = Augmentation(crop=RandomResized(), flip="random", pad=pad)
    ours = batches_of(Resident(), photos, augmentation=changes)
    theirs = batches_of(other, photos, augmentation=changes, batch_size=5)
    assert all(torch.equal(image, theirs[label]) for label, image in ours.items())


def test_the_centre_is_shown_without_a_random_crop(photos: Images) -> None:
    found = batches_of(Resident(), photos)
    for label, image in found.items():
        height, width = photos.sizes[label].tolist()
        whole = torch.from_numpy(photos.pixels[label][:height, :width]).permute(2, 0, 1)
        square = functional.center_crop(whole, [min(height, width)])
        exact = functional.resize(square, [24, 24]).float() / 255
        exact = functional.normalize(exact, list(MEAN), list(STD))
        assert torch.allclose(image, exact, atol=1e-5)


def test_evaluation_is_torchvisions_resize_and_centre_crop(photos: Images) -> None:
    view = View(MEAN, STD, image_size=28, crop_pct=0.875)
    ((found, _),) = eval_batches(photos, view, batch_size=99, device=CPU)
    theirs = v2.Compose([v2.Resize(32), v2.CenterCrop(28)])
    for image, box, (height, width) in zip(found, photos.pixels, photos.sizes, strict=True):
        whole = torch.from_numpy(box[:height, :width]).permute(2, 0, 1)
        exact = functional.normalize(theirs(whole).float() / 255, list(MEAN), list(STD))
        # A window begins at a whole pixel of the stored image, theirs at one of the resized image.
        assert (image - exact).abs().mean() < 0.1


def test_the_centred_window_has_its_share_of_the_short_side() -> None:
    sizes = np.array([[256, 341], [400, 256], [1, 1]])
    assert centred(sizes, crop_pct=0.875).T.tolist() == [
        [16, 58, 224, 224],
        [88, 16, 224, 224],
        [0, 0, 1, 1],
    ]
    assert Centre().windows(sizes, Drawer(3, 0, 0))[2].tolist() == [256, 256, 1]


def test_images_of_several_sizes_need_a_size_to_train_at(photos: Images) -> None:
    batching = Batching(SampleOrder(len(photos.labels), 8, 0), MEAN, STD, CPU)
    with pytest.raises(ConfigError) as caught:
        Resident().open(photos, batching)
    assert [problem.path for problem in caught.value.problems] == ["recipe.image_size"]


def test_a_step_at_another_size_gets_its_images_at_that_size(photos: Images) -> None:
    order = SampleOrder(len(photos.labels), 8, 0)
    loader = Resident().open(photos, Batching(order, MEAN, STD, CPU, image_size=24))
    loader.show_at(16, 16)
    assert next(loader.epoch(0))[0].shape == (8, 3, 16, 16)
    padded = Batching(order, MEAN, STD, CPU, Augmentation(pad=2), image_size=24)
    loader = Resident().open(photos, padded)
    loader.show_at(16, 16)
    assert next(loader.epoch(0))[0].shape == (8, 3, 24, 24)


def test_no_epoch_is_drawn_before_one_is_asked_for(photos: Images, monkeypatch) -> None:
    monkeypatch.setattr("tune_speed.data.loaders.base.draw_in_order", None)
    loader = Resident().open(photos, Batching(SampleOrder(24, 8, 0), MEAN, STD, CPU, image_size=24))
    assert loader.num_samples == 24
    with pytest.raises(TypeError):
        next(loader.epoch(0))
