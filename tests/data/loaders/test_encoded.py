"""Sets that are stored as JPEG: what is decoded on the way is what was decoded before."""

import gc
import threading
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest
import torch
from helpers.data.files import encode
from helpers.processes import command_of
from torch import Tensor

from tune_speed.core.errors import ConfigError, DataError
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.augmentation.crops import Centre
from tune_speed.data.base import EncodedRows, Images, MappedRows
from tune_speed.data.boxes import decode_into
from tune_speed.data.loaders import worker_pool
from tune_speed.data.loaders.base import Batching
from tune_speed.data.loaders.configs import Automatic, LoaderConfig, Resident, Streaming
from tune_speed.data.loaders.resident import View, eval_batches, hold
from tune_speed.data.loaders.worker_pool import WorkerPool
from tune_speed.data.orders import SampleOrder
from tune_speed.data.workers import MOST_THREADS, pieces

CPU = torch.device("cpu")
HALVES = (0.5, 0.5, 0.5)
NUM_IMAGES, BOX = 20, (48, 40, 3)
WAYS = {
    "no worker": Streaming(),
    "one": Streaming(workers=1, persistent_workers=False),
    "two": Streaming(workers=2),
    "resident": Resident(),
    "auto": Automatic(),
}


class Store(NamedTuple):
    """The same images as boxes, as boxes in a file, and encoded."""

    decoded: Images
    mapped: Images
    encoded: Images


def photo(number: int) -> np.ndarray:
    """Returns smooth colours of a size of its own, (H, W, 3)."""
    height, width = 24 + number, 40 - number
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(y / (3 + c + number) + x / (5 + number % 7)) for c in range(3)]
    return np.stack([(127 * wave + 128).astype(np.uint8) for wave in waves], axis=2)


def encoded(files: list[bytes], folder: Path, rows: np.ndarray) -> EncodedRows:
    np.save(folder / "encoded.npy", np.frombuffer(b"".join(files), np.uint8))
    mapped = np.asarray(np.load(folder / "encoded.npy", mmap_mode="r"))
    return EncodedRows(mapped, np.cumsum([len(file) for file in files]), BOX, rows)


@pytest.fixture
def files() -> list[bytes]:
    return [encode(photo(number), kind="jpeg") for number in range(NUM_IMAGES + 4)]


@pytest.fixture
def store(files: list[bytes], tmp_path: Path) -> Store:
    rows = np.random.default_rng(0).permutation(len(files))[:NUM_IMAGES]
    boxes = np.zeros((len(files), *BOX), np.uint8)
    sizes = np.array([decode_into(file, box) for file, box in zip(files, boxes, strict=True)])
    np.save(tmp_path / "pixels.npy", boxes)
    mapped = MappedRows(np.asarray(np.load(tmp_path / "pixels.npy", mmap_mode="r")), rows)
    kinds = (boxes[rows], mapped, encoded(files, tmp_path, rows))
    return Store(*(Images(pixels, np.arange(NUM_IMAGES), sizes[rows]) for pixels in kinds))


def batches_of(config: LoaderConfig, images: Images) -> list[tuple[Tensor, Tensor]]:
    order = SampleOrder(NUM_IMAGES, 8, 3)
    changes = Augmentation(crop=Centre(), flip="random")
    loader = config.open(images, Batching(order, HALVES, HALVES, CPU, changes, image_size=16))
    try:
        return [batch for epoch in range(2) for batch in loader.epoch(epoch)]
    finally:
        loader.close()


def are_equal(ours: list[tuple[Tensor, Tensor]], theirs: list[tuple[Tensor, Tensor]]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(torch.equal(*each) for batches in pairs for each in zip(*batches, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_images_bit_by_bit(way: str, store: Store) -> None:
    expected = batches_of(Resident(), store.decoded)
    assert are_equal(batches_of(WAYS[way], store.encoded), expected)
    assert are_equal(batches_of(WAYS[way], store.mapped), expected)


def test_evaluation_sees_all_images_in_order(store: Store) -> None:
    view = View(HALVES, HALVES, image_size=16, crop_pct=0.9)
    expected, ours, held = (
        list(eval_batches(images, view, batch_size=6, device=CPU))
        for images in (store.decoded, store.encoded, hold(store.encoded, CPU))
    )
    assert are_equal(ours, expected) and are_equal(held, expected)


def test_pieces_are_decoded_at_most_one_ahead_and_no_thread_stays(store: Store) -> None:
    before = threading.active_count()
    come = pieces(store.encoded.pixels, 6)
    first = next(come)
    assert first.shape == (6, *BOX) and threading.active_count() <= before + MOST_THREADS + 1
    del come
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "config",
    [Streaming(), Streaming(workers=1), Resident()],
    ids=["threads", "worker", "resident"],
)
def test_truncated_image_of_the_store_is_named(
    config: LoaderConfig, files: list[bytes], tmp_path: Path
) -> None:
    files[7] = files[7][: len(files[7]) // 2]
    pixels = encoded(files, tmp_path, np.arange(NUM_IMAGES))
    images = Images(pixels, np.arange(NUM_IMAGES), np.full((NUM_IMAGES, 2), 20))
    with pytest.raises(DataError, match=r"\b7\b.* Remove the folder of .*encoded\.npy"):
        batches_of(config, images)


def workers() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "data/boxes.py" in command_of(child)]


def test_killed_worker_that_decodes_is_an_error_at_once(store: Store) -> None:
    batching = Batching(SampleOrder(NUM_IMAGES, 2, 0), HALVES, HALVES, CPU, image_size=16)
    loader = Streaming(workers=2, prefetch_factor=1).open(store.encoded, batching)
    batches = loader.epoch(0)
    next(batches)
    workers()[0].kill()
    began_s = time.monotonic()
    with pytest.raises(DataError, match="exit code -9"):
        list(batches)
    assert time.monotonic() - began_s < 5 and workers() == []
    loader.close()


@pytest.mark.parametrize(("free_batches", "fits"), [(16, True), (15, False)])
def test_stock_of_more_than_a_quarter_of_the_memory_is_refused(
    free_batches: int, fits: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches of eight boxes are a quarter of sixteen."""
    free = free_batches * 8 * int(np.prod(BOX))
    monkeypatch.setattr(worker_pool, "free_bytes", lambda device: free)
    make = partial(WorkerPool, store.encoded.pixels, 8, workers=2, prefetch_factor=2, timeout_s=9)
    if fits:
        make().close()
        return
    with pytest.raises(ConfigError, match=r"at most 3 batches .*workers=2"):
        make()
