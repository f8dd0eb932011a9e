"""Parts of large sets, which stay in the file that the whole set is mapped from."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tune_speed.data import LOADERS, split
from tune_speed.data.augment import Augmentation
from tune_speed.data.base import Images, MappedRows
from tune_speed.data.cache import PreparedData
from tune_speed.data.loaders.base import Batching
from tune_speed.data.loaders.configs import LoaderConfig, Streaming
from tune_speed.data.loaders.resident import eval_batches
from tune_speed.data.orders import SampleOrder
from tune_speed.data.split import SplitConfig, Splits, make_splits

CPU = torch.device("cpu")
CONFIGS = {name: kind() for name, kind in LOADERS.items()} | {
    "dataloader, 2 workers": Streaming(workers=2)
}
SPLIT = SplitConfig(validation_frac=0.2)


@pytest.fixture
def data(random_pixels: Callable[..., np.ndarray], tmp_path: Path) -> PreparedData:
    np.save(tmp_path / "pixels.npy", random_pixels(90, 6, 7, 3))
    pixels = np.asarray(np.load(tmp_path / "pixels.npy", mmap_mode="r"))
    return PreparedData(Images(pixels, np.arange(90) % 3), None, ("a", "b", "c"), "cafe")


@pytest.fixture
def parts(data: PreparedData, monkeypatch: pytest.MonkeyPatch) -> tuple[Splits, Splits]:
    """Returns the parts left in the file, and the same parts copied."""
    copied = make_splits(data, SPLIT)
    monkeypatch.setattr(split, "MOST_COPIED_BYTES", 0)
    return make_splits(data, SPLIT), copied


def batches_of(config: LoaderConfig, splits: Splits) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    order, changes = SampleOrder(len(splits.train.labels), 8, 3), Augmentation(pad=2, flip="random")
    loader = config.open(splits.train, Batching(order, splits.mean, splits.std, CPU, changes))
    for epoch in range(2):
        yield from loader.epoch(epoch)
    loader.close()


def test_large_part_is_left_in_the_file_and_a_small_one_is_copied(
    parts: tuple[Splits, Splits],
) -> None:
    mapped, copied = parts
    assert isinstance(mapped.train.pixels, MappedRows)
    assert isinstance(copied.train.pixels, np.ndarray)
    assert isinstance(mapped.train.pixels.whole.base, np.memmap)


def test_set_that_is_no_file_is_copied(data: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MOST_COPIED_BYTES", 0)
    in_memory = data._replace(train=data.train._replace(pixels=np.array(data.train.pixels)))
    assert isinstance(make_splits(in_memory, SPLIT).train.pixels, np.ndarray)


def test_what_is_known_of_a_part_is_the_same(parts: tuple[Splits, Splits]) -> None:
    mapped, copied = parts
    assert mapped[3:] == copied[3:]  # mean, standard deviation, classes and hash
    for ours, theirs in zip(mapped[:3], copied[:3], strict=True):
        assert ours.pixels.shape == theirs.pixels.shape
        assert np.array_equal(ours.labels, theirs.labels)
        assert np.array_equal(ours.pixels[:], theirs.pixels)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_batches_are_the_same_bit_by_bit(
    config: LoaderConfig, parts: tuple[Splits, Splits]
) -> None:
    mapped, copied = parts
    expected = list(batches_of(LOADERS["resident"](), copied))
    for (images, labels), (images_e, labels_e) in zip(
        batches_of(config, mapped), expected, strict=True
    ):
        assert torch.equal(images, images_e) and torch.equal(labels, labels_e)


def test_evaluation_sees_the_same_images(parts: tuple[Splits, Splits]) -> None:
    ours, theirs = (
        [
            batch
            for batch, _ in eval_batches(
                splits.validation,
                mean=splits.mean,
                std=splits.std,
                batch_size=5,
                device=CPU,
                channels_last=False,
            )
        ]
        for splits in parts
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
