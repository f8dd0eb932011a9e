"""Data sets of a stranger: nothing in them is run, and none takes more than its share."""

import hashlib
import io
import json
import pickle
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tune_speed.core.errors import ConfigError, DataError
from tune_speed.data.base import Encoded, EncodedData, EncodedPart
from tune_speed.data.datasets import image_parquet
from tune_speed.data.datasets.builtin import read_batch
from tune_speed.data.datasets.decoding import ImageFiles, decode_images
from tune_speed.data.datasets.image_folder import ImageFolder
from tune_speed.data.datasets.image_parquet import ImageParquet
from tune_speed.study.file import parse_recipe


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "ran")


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_a_cifar_batch_that_names_anything_else_is_not_unpickled(tmp_path: Path) -> None:
    """Even where its digest is that of the published file."""
    ran, file = tmp_path / "ran", tmp_path / "data_batch_1"
    for content in ({b"data": Runs(ran)}, Runs(ran), [Runs(ran)]):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            md5 = write(file, pickle.dumps(content, protocol))
            with pytest.raises(
                DataError, match=r"is no file of CIFAR: it names (pathlib|_codecs|_*builtins?_*)\."
            ):
                read_batch(file, md5=md5)
    by_hand = b"cos\nsystem\n(S'touch " + str(ran).encode() + b"'\ntR."
    with pytest.raises(DataError, match=r"it names os\.system"):
        read_batch(file, md5=write(file, by_hand))
    assert not ran.exists()


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_a_cifar_batch_as_it_was_published_is_read(tmp_path: Path, module: str) -> None:
    """Python 2 wrote it, with numpy's names of then and texts that are bytes."""
    file = tmp_path / "data_batch_1"
    content = (
        b"\x80\x02}q\x01(U\x04dataq\x02c" + module.encode() + b"\n_reconstruct\nq\x03cnumpy\n"
        b"ndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01K\x04\x86cnumpy\ndtype\nq\x06U\x02u1"
        b"K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x04"
        b"\x01\x02\xff\x80tbU\x06labelsq\x08]q\x09K\x07au."
    )
    fields = read_batch(file, md5=write(file, content))
    assert fields["data"].tolist() == [[1, 2, 255, 128]]
    assert fields["labels"] == [7]


def test_a_cifar_batch_that_was_changed_is_not_looked_into(tmp_path: Path) -> None:
    file = tmp_path / "data_batch_1"
    md5 = write(file, pickle.dumps({"data": 1}))
    file.write_bytes(pickle.dumps({"data": 2}))
    with pytest.raises(DataError, match="missing or corrupted"):
        read_batch(file, md5=md5)


def png(width: int, height: int) -> bytes:

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    b"(%pipe%touch owned) (w) file\nshowpage\n"
)


def decode(content: bytes, folder: Path) -> None:
    part = EncodedPart("part", lambda: [Encoded(content, "image 0")], np.zeros(1, np.int64))
    data = EncodedData(part, None, ("a",))
    decode_images(data, ImageFiles(), folder, lambda *_: None)


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at most 100 million pixels"):
        decode(png(60_000, 60_000), tmp_path)


def test_postscript_is_no_image_whatever_it_is_called(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="image 0 must be an image"):
        decode(EPS, tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(EPS)
    dataset = ImageFolder(root=str(tmp_path), image_size=8)
    with pytest.raises(DataError, match="must be an image"):
        dataset.decode(download=False, on_progress=lambda *_: None)
    assert not Path("owned").exists()


def encoded() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(path: Path, metadata: bytes | None = None, **columns: Any) -> ImageParquet:
    given = {"img": pa.array([encoded()] * 4), "label": pa.array([0, 1, 0, 1]), **columns}
    table = pa.table(given)
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": metadata})
    pq.write_table(table, path, compression="zstd")
    return ImageParquet(train=str(path))


@pytest.mark.parametrize(
    "metadata",
    [b"{", b"[" * 100_000, b"\xff\xfe", b'{"info": {"features": {"label": {"names": []}}}}'],
)
def test_parquet_with_hostile_metadata_is_refused(tmp_path: Path, metadata: bytes) -> None:
    dataset = parquet(tmp_path / "a.parquet", metadata)
    with pytest.raises(DataError, match=r"a\.parquet"):
        dataset.decode(download=False, on_progress=lambda *_: None)


@pytest.mark.parametrize(
    "columns",
    [
        {"img": pa.array([{"bytes": [1, 2]}] * 4)},
        {"img": pa.array([{"bytes": None}] * 4)},
        {"img": pa.array([None] * 4, pa.binary())},
        {"img": pa.array([b"x"] * 4)},
        {"img": pa.array([png(60_000, 60_000)] * 4)},
        {"label": pa.array([2**64 - 1, 0, 1, 2], pa.uint64())},
        {"label": pa.array([-1, 0, 1, 1])},
        {"label": pa.array([0, 1, None, 1])},
        {"label": pa.array([0.5] * 4)},
        {"label": pa.array([[0], [1], None, [1]])},
        {"img": pa.array([{"path": "/nowhere.png"}] * 4)},
        {"label": pa.array([10**12, 0, 0, 0])},
    ],
)
def test_parquet_with_hostile_columns_is_refused(tmp_path: Path, columns: dict[str, Any]) -> None:
    dataset = parquet(tmp_path / "a.parquet", **columns)
    with pytest.raises(DataError):
        dataset.decode(download=False, on_progress=lambda *_: None)


def test_parquet_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    column = pa.array([0, 1])
    table = pa.Table.from_arrays([column, column, column], names=["img", "label", "label"])
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = ImageParquet(train=str(tmp_path / "a.parquet"))
    with pytest.raises(DataError, match="readable Parquet file"):
        dataset.decode(download=False, on_progress=lambda *_: None)


def test_parquet_that_says_it_has_too_many_rows_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = parquet(tmp_path / "a.parquet")
    monkeypatch.setattr(image_parquet, "MAX_ROWS", 3)
    with pytest.raises(DataError, match="at most 3 rows, but says it has 4"):
        dataset.num_train()


def test_parquet_of_bombs_is_refused_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_parquet, "MAX_IMAGE_BYTES", 1 << 20)
    dataset = parquet(tmp_path / "a.parquet", img=pa.array([encoded(), bytes(2 << 20)] * 2))
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    with pytest.raises(DataError, match=r"at most 1 MiB, but row 1 of .* has 2"):
        dataset.decode(download=False, on_progress=lambda *_: None)


def test_damaged_parquet_is_always_our_error(tmp_path: Path) -> None:
    dataset = parquet(tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    chooser = np.random.default_rng(7)
    num_refused = 0
    for _ in range(150):
        damaged = bytearray(content)
        for place in chooser.integers(0, len(content), 3):
            damaged[place] = chooser.integers(0, 256)
        (tmp_path / "a.parquet").write_bytes(damaged)
        try:
            dataset.num_train()
            dataset.decode(download=False, on_progress=lambda *_: None)
        except DataError:
            num_refused += 1
    assert num_refused > 50


WORKLOAD = """
workload: {{dataset: {dataset}, target: {{value: 0.9}}}}
recipe: {{model: resnet20, optimizer: {{sgd: {{lr: 0.1}}}}, epochs: 1, batch_size: 2}}
"""


@pytest.mark.parametrize(
    "dataset",
    [
        {"name": "image_folder", "root": "a/" * 5000, "image_size": 8},
        {"name": "image_folder", "root": "/proc/self/mem", "image_size": 8},
        {"name": "image_folder", "root": "/nowhere", "image_size": sys.maxsize},
        {"name": "image_parquet", "train": "a" * 5000},
        {"name": "image_parquet", "train": "/etc/passwd"},
        {"name": "image_parquet", "train": "/dev/zero"},
        {"name": "cifar10", "root": "a" * 5000},
        {"name": "torchvision.datasets.CIFAR10", "root": "x"},
    ],
)
def test_a_recipe_with_a_hostile_place_of_data_is_refused(dataset: dict[str, Any]) -> None:
    text = WORKLOAD.format(dataset=json.dumps(dataset))
    with pytest.raises((ConfigError, DataError)) as caught:
        parse_recipe(text, file="recipe.yaml")
    assert "root:x" not in str(caught.value)
    assert len(str(caught.value)) < 20_000
