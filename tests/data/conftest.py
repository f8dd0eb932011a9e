"""Small data sets that the tests make themselves."""

import hashlib
import pickle
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from tune_speed.data.base import Images
from tune_speed.data.cache import PreparedData


def encode(pixels: np.ndarray, mode: str | None = None, kind: str = "png") -> bytes:
    """Returns (H, W, 3) or (H, W) pixels as the bytes of an image file, lossless for PNG."""
    image, buffer = Image.fromarray(pixels), BytesIO()
    (image.convert(mode) if mode else image).save(buffer, kind)
    return buffer.getvalue()


def write_parquet(
    path: Path,
    images: Sequence[bytes | None],
    labels: Sequence[Any],
    *,
    names: Sequence[str] | None = None,
    label_type: pa.DataType | None = None,
    as_struct: bool = True,
) -> Path:
    """Writes a file in the layout of the Hugging Face hub, with a column that nobody reads."""
    values = [{"bytes": image, "path": None} for image in images] if as_struct else list(images)
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()}) if as_struct else pa.binary()
    columns = {
        "img": pa.array(values, kind),
        "label": pa.array(labels, label_type or pa.int64()),
        "note": pa.array(["x"] * len(labels)),
    }
    table = pa.table(columns)
    if names is not None:
        features = f'{{"label": {{"names": {list(names)}}}}}'.replace("'", '"')
        table = table.replace_schema_metadata(
            {"huggingface": f'{{"info": {{"features": {features}}}}}'}
        )
    pq.write_table(table, path, row_group_size=3)
    return path


def write_cifar(kind: type[CIFAR10], root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Writes a small set in torchvision's format, 4 images a file; returns the training pixels."""
    rng, label_key = np.random.default_rng(5), "fine_labels" if kind is CIFAR100 else "labels"
    files: dict[str, dict[str, Any]] = {
        name: {"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), label_key: [0, 1, 2, 1]}
        for name, _ in kind.train_list + kind.test_list
    }
    files[kind.meta["filename"]] = {kind.meta["key"]: ["cat", "dog", "owl"]}
    md5 = {}
    (root / kind.base_folder).mkdir(parents=True)
    for name, content in files.items():
        (root / kind.base_folder / name).write_bytes(pickle.dumps(content))
        md5[name] = hashlib.md5(pickle.dumps(content)).hexdigest()
    for part in ("train_list", "test_list"):
        monkeypatch.setattr(kind, part, [[name, md5[name]] for name, _ in getattr(kind, part)])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5[kind.meta["filename"]]})
    return np.concatenate([files[name]["data"] for name, _ in kind.train_list])


@pytest.fixture
def random_pixels() -> Callable[..., np.ndarray]:
    rng = np.random.default_rng(7)
    return lambda *shape: rng.integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def make_data(random_pixels: Callable[..., np.ndarray]) -> Callable[..., PreparedData]:
    """Returns a maker of data sets in memory with the given number of images of each class."""

    def make(counts: Sequence[int], *, num_test: int | None = None, size: int = 4) -> PreparedData:
        labels = np.random.default_rng(3).permutation(np.repeat(np.arange(len(counts)), counts))
        train = Images(random_pixels(len(labels), size, size, 3), labels)
        test = None
        if num_test is not None:
            test = Images(random_pixels(num_test, size, size, 3), np.arange(num_test) % len(counts))
        return PreparedData(train, test, tuple(map(str, range(len(counts)))), "cafe")

    return make
