import numpy as np
import pytest
import torch

from tune_speed.core.words import NoteKind
from tune_speed.data.base import EncodedRows, Images, MappedRows, Pixels
from tune_speed.data.loaders import resident
from tune_speed.data.loaders.configs import Automatic, Resident, Streaming

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SHAPE = (10, 10, 10, 1)


def stored(kind: str) -> Pixels:
    """Returns 1,000 bytes of pixels that no test reads."""
    if kind == "in memory":
        return np.zeros(SHAPE, np.uint8)
    if kind == "mapped":
        return MappedRows(np.zeros(SHAPE, np.uint8), np.arange(10))
    return EncodedRows(np.zeros(10, np.uint8), np.arange(10), SHAPE[1:], np.arange(10))


@pytest.mark.parametrize(
    ("device", "kind", "parts", "free", "way"),
    [
        (GPU, "in memory", 1, 2500, "resident"),  # 40 % of 2,500 are 1,000
        (GPU, "in memory", 1, 2499, "mapped"),
        (GPU, "mapped", 2, 5000, "resident"),  # with the part that evaluates
        (GPU, "mapped", 2, 4999, "mapped"),
        (GPU, "encoded", 1, 2500, "resident"),
        (GPU, "encoded", 1, 2499, "encoded"),
        (CPU, "in memory", 1, 0, "resident"),  # as it is, without a copy
        (CPU, "mapped", 1, 2000, "resident"),
        (CPU, "mapped", 1, 1999, "mapped"),
        (CPU, "encoded", 1, 1999, "encoded"),
    ],
)
def test_way_follows_from_size_device_and_storage(device, kind, parts, free, way, monkeypatch):
    monkeypatch.setattr(resident, "free_bytes", lambda device: free)
    images = [Images(stored(kind), np.zeros(10, np.int64))] * parts
    loader, note = Automatic().chosen(images, device)
    assert isinstance(loader, Resident if way == "resident" else Streaming)
    assert note.kind is NoteKind.LOADER and note.figures["way"] == way
    assert note.figures["set_gib"] == pytest.approx(parts * 1000 / 2**30)


@pytest.mark.parametrize(
    ("kind", "host", "is_less"),
    [("mapped", 999, True), ("mapped", 1000, False), ("encoded", 1, False)],
)
def test_pages_that_memory_cannot_keep_are_noted(kind, host, is_less, monkeypatch):
    monkeypatch.setattr(resident, "free_bytes", lambda device: 0 if device == GPU else host)
    _, note = Automatic().chosen([Images(stored(kind), np.zeros(10, np.int64))], GPU)
    assert ("host_gib" in note.figures) == is_less
