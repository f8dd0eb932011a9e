from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers.components.references import changed_by_scipy
from torch import Tensor

from tune_speed.core.errors import ConfigError
from tune_speed.data import LOADERS
from tune_speed.data.augmentation.base import Drawer
from tune_speed.data.augmentation.config import Augmentation, draw
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Batching, Loader
from tune_speed.data.loaders.configs import LoaderConfig, Streaming
from tune_speed.data.loaders.resident import View, eval_batches, hold
from tune_speed.data.orders import Order, SampleOrder

CPU = torch.device("cpu")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
ALL = Augmentation(pad=2, flip="alternating", affine=0.1, cutout=3)
CONFIGS = {name: kind() for name, kind in LOADERS.items()} | {
    "dataloader, 2 workers": Streaming(workers=2),
    "dataloader, 1 worker that does not stay": Streaming(workers=1, persistent_workers=False),
}
NUM_IMAGES, BATCH_SIZE = 50, 16

Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture
def images(random_pixels: Callable[..., np.ndarray]) -> Images:
    return Images(random_pixels(NUM_IMAGES, 6, 7, 3), np.arange(NUM_IMAGES))


@pytest.fixture
def open_loader(images: Images) -> Iterator[Callable[..., Loader]]:
    opened: list[Loader] = []

    def open_one(config: LoaderConfig, **changes: Any) -> Loader:
        sizes = {"batch_size": BATCH_SIZE, "seed": 1}
        sizes |= {name: changes.pop(name) for name in sizes.keys() & changes.keys()}
        order = changes.pop("order", None) or SampleOrder(NUM_IMAGES, **sizes)
        opened.append(config.open(images, Batching(order, MEAN, STD, CPU, **changes)))
        return opened[-1]

    yield open_one
    for loader in opened:
        loader.close()


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> LoaderConfig:
    return CONFIGS[request.param]


@pytest.fixture(params=LOADERS)
def entry(request: pytest.FixtureRequest) -> LoaderConfig:
    return CONFIGS[request.param]


OpenLoader = Callable[..., Loader]


def labels_of(batches: Batches) -> list[int]:
    return [int(label) for _, labels in batches for label in labels]


def test_every_image_comes_once_an_epoch_and_the_last_batch_is_ragged(config, open_loader):
    loader = open_loader(config)
    for epoch in range(2):
        batches = list(loader.epoch(epoch))
        assert [len(labels) for _, labels in batches] == [16, 16, 16, 2]
        assert [len(images) for images, _ in batches] == [16, 16, 16, 2]
        assert sorted(labels_of(batches)) == list(range(NUM_IMAGES))
    assert loader.num_samples == NUM_IMAGES


def test_planned_batches_become_those_of_the_epoch_when_they_are_unpacked(config, open_loader):
    made, planned = open_loader(config).epoch(0), open_loader(config).planned(0)
    for (images, labels), batch in zip(made, planned, strict=True):
        images_again, labels_again = batch
        assert torch.equal(images, images_again) and torch.equal(labels, labels_again)


def test_dummy_is_made_as_planned_batches_are_from_images_that_differ(config, open_loader):
    loader = open_loader(config)
    batch, dummy = next(loader.planned(0)), loader.dummy(16)
    assert dummy.make == batch.make
    assert [each.shape for each in dummy.tensors] == [each.shape for each in batch.tensors]
    assert [each.dtype for each in dummy.tensors] == [each.dtype for each in batch.tensors]
    images, labels = dummy
    assert len(images.flatten(1).unique(dim=0)) == 16 and not labels.any()


@pytest.mark.parametrize("channels_last", [False, True])
def test_images_are_float32_normalised_and_in_the_layout_asked_for(
    entry: LoaderConfig, open_loader: OpenLoader, images: Images, channels_last: bool
) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for batch, labels in open_loader(entry, channels_last=channels_last).epoch(0):
        assert batch.dtype == torch.float32 and labels.dtype == torch.int64
        assert batch.shape[1:] == (3, 6, 7) and batch.is_contiguous(memory_format=layout)
        exact = (images.pixels[labels.numpy()].astype(np.float64) / 255 - MEAN) / STD
        assert np.allclose(batch.numpy().transpose(0, 2, 3, 1), exact, rtol=0, atol=1e-6)


def test_all_loaders_give_the_same_batches_bit_by_bit(config, open_loader):
    ours = open_loader(config, augmentation=ALL)
    reference = open_loader(LOADERS["resident"](), augmentation=ALL)
    for epoch in range(2):
        expected = list(reference.epoch(epoch))
        for (images, labels), (images_r, labels_r) in zip(ours.epoch(epoch), expected, strict=True):
            assert torch.equal(images, images_r) and torch.equal(labels, labels_r)


def test_augmented_images_match_one_by_one_in_numpy(entry, open_loader, images):
    loader = open_loader(entry, augmentation=ALL, seed=4)
    for epoch in range(2):
        draws = draw(ALL, Drawer(NUM_IMAGES, 4, epoch, 6, 7))
        for batch, labels in loader.epoch(epoch):
            for image, number in zip(batch, labels.tolist(), strict=True):
                y, x, flip, affine, top, left = (int(values[number]) for values in draws.values())
                padded = np.pad(images.pixels[number], [(2, 2), (2, 2), (0, 0)], mode="reflect")
                window = padded[y : y + 6, x : x + 7]
                exact = ((window[:, ::-1] if flip else window) / 255 - MEAN) / STD
                exact = changed_by_scipy(exact, affine, most=ALL.affine)
                exact[top : top + 3, left : left + 3] = 0
                assert np.allclose(image.numpy().transpose(1, 2, 0), exact, rtol=0, atol=2e-5)


def test_order_follows_seed_and_epoch_alone(entry: LoaderConfig, open_loader: OpenLoader) -> None:
    first = open_loader(entry)
    orders = [labels_of(list(first.epoch(epoch))) for epoch in range(2)]
    assert orders[0] != orders[1] != list(range(NUM_IMAGES))
    again = open_loader(entry, batch_size=7, augmentation=ALL)
    assert [labels_of(list(again.epoch(epoch))) for epoch in range(2)] == orders
    assert labels_of(list(open_loader(entry, seed=2).epoch(0))) not in orders


@pytest.mark.parametrize("skip", [1, 3, 4])
def test_epoch_may_begin_in_its_midst_and_the_next_follows(config, open_loader, skip):
    whole = open_loader(LOADERS["resident"](), augmentation=ALL)
    loader = open_loader(config, augmentation=ALL)
    expected = list(whole.epoch(1))[skip:] + list(whole.epoch(2))
    batches = list(loader.epoch(1, skip=skip)) + list(loader.epoch(2))
    for (images, labels), (images_e, labels_e) in zip(batches, expected, strict=True):
        assert torch.equal(images, images_e) and torch.equal(labels, labels_e)


def test_epochs_may_be_left_early_and_taken_in_any_order(config, open_loader):
    whole, loader = open_loader(LOADERS["resident"]()), open_loader(config)
    expected = {epoch: labels_of(list(whole.epoch(epoch))) for epoch in (2, 0, 1)}
    next(iter(loader.epoch(2)))
    assert {epoch: labels_of(list(loader.epoch(epoch))) for epoch in (0, 2, 1)} == expected


def repeating(batch_size: int = BATCH_SIZE) -> Order:
    return SampleOrder(NUM_IMAGES, batch_size, 1, factors=np.linspace(1, 3, NUM_IMAGES))


def test_repeating_order_gives_epochs_of_its_lengths(config, open_loader):
    loader = open_loader(config, order=repeating())
    for epoch in range(2):
        batches = list(loader.epoch(epoch))
        assert labels_of(batches) == repeating().epoch(epoch).tolist()
        assert loader.num_in(epoch) == len(labels_of(batches)) > NUM_IMAGES
        assert all(len(labels) == BATCH_SIZE for _, labels in batches[:-1])
    assert loader.num_samples == NUM_IMAGES


def test_image_that_comes_again_is_changed_anew(entry, open_loader):
    loader = open_loader(entry, augmentation=ALL, order=repeating())
    reference = open_loader(LOADERS["resident"](), augmentation=ALL, order=repeating())
    batches = list(loader.epoch(0))
    images = torch.cat([batch for batch, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    last_image = images[labels == NUM_IMAGES - 1]
    assert len(last_image) == 3 and not torch.equal(last_image[0], last_image[2])
    assert torch.equal(images, torch.cat([batch for batch, _ in reference.epoch(0)]))


def test_order_given_as_the_default_one_changes_nothing(entry, open_loader):
    default = open_loader(entry, augmentation=ALL)
    given = open_loader(entry, augmentation=ALL, order=SampleOrder(NUM_IMAGES, BATCH_SIZE, 1))
    for (images, labels), (images_g, labels_g) in zip(
        default.epoch(1), given.epoch(1), strict=True
    ):
        assert torch.equal(images, images_g) and torch.equal(labels, labels_g)


def test_new_order_holds_from_the_next_epoch_on(config, open_loader):
    loader = open_loader(config)
    assert len(labels_of(list(loader.epoch(0)))) == NUM_IMAGES
    loader.reorder(repeating())
    for epoch in (0, 1):
        assert labels_of(list(loader.epoch(epoch))) == repeating().epoch(epoch).tolist()


def test_changes_to_an_image_do_not_depend_on_the_batch_size(entry, open_loader):
    small, large = (
        {
            int(label): image
            for batch in loader.epoch(0)
            for image, label in zip(*batch, strict=True)
        }
        for loader in (
            open_loader(entry, augmentation=ALL, batch_size=size) for size in (3, NUM_IMAGES)
        )
    )
    assert all(torch.equal(small[number], large[number]) for number in range(NUM_IMAGES))


def test_loading_leaves_torch_and_numpy_seeds_alone(entry, open_loader):
    loader = open_loader(entry, augmentation=ALL)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    list(loader.epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_closing_twice_is_allowed(config: LoaderConfig, open_loader: OpenLoader) -> None:
    loader = open_loader(config)
    list(loader.epoch(0))
    loader.close()
    loader.close()


def test_read_only_pixels_are_taken(config: LoaderConfig, images: Images) -> None:
    images.pixels.flags.writeable = False
    order = SampleOrder(NUM_IMAGES, BATCH_SIZE, 0)
    loader = config.open(images, Batching(order, MEAN, STD, CPU, ALL, channels_last=False))
    assert sorted(labels_of(list(loader.epoch(0)))) == list(range(NUM_IMAGES))
    loader.close()


def test_augmentation_too_large_for_the_images_is_refused(config, open_loader):
    with pytest.raises(ConfigError, match=r"augmentation\.pad: .* 5"):
        open_loader(config, augmentation=Augmentation(pad=6))


@pytest.mark.parametrize("channels_last", [False, True])
def test_evaluation_sees_all_images_in_order_and_unchanged(images, channels_last):
    batches = list(
        eval_batches(
            images, View(MEAN, STD, channels_last=channels_last), batch_size=16, device=CPU
        )
    )
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert all(batch.is_contiguous(memory_format=layout) for batch, _ in batches)
    assert labels_of(batches) == list(range(NUM_IMAGES))
    exact = (images.pixels.astype(np.float64) / 255 - MEAN) / STD
    seen = torch.cat([batch for batch, _ in batches]).numpy().transpose(0, 2, 3, 1)
    assert np.allclose(seen, exact, rtol=0, atol=1e-6)


def test_evaluation_of_held_images_sees_the_same_batches_bit_by_bit(images: Images) -> None:
    images.pixels.flags.writeable = False
    held = hold(images, CPU)
    for _ in range(2):
        ours, theirs = (
            list(eval_batches(given, View(MEAN, STD), batch_size=16, device=CPU))
            for given in (held, images)
        )
        assert labels_of(ours) == labels_of(theirs) == list(range(NUM_IMAGES))
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(ours, theirs, strict=True))
