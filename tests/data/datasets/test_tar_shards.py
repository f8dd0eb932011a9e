import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.data.files import decode, encode, write_tar

from tune_speed.core.errors import DataError
from tune_speed.data.datasets.shards import TarShards


@pytest.fixture
def image(random_pixels: Callable[..., np.ndarray]) -> bytes:
    return encode(random_pixels(4, 4, 3))


def test_samples_are_read_by_offset_in_the_order_of_shards(tmp_path, random_pixels):
    pixels = random_pixels(5, 4, 4, 3)
    for shard, of in {"000009": (0, 1, 2), "000010": (3, 4)}.items():
        files: dict[str, bytes] = {}
        for i in of:
            # A name longer than the header's 100 bytes has a block of its own.
            name = f"deep/{'x' * 150}/{i}"
            files |= {f"{name}.caption.txt": b"of no use", f"{name}.PNG": encode(pixels[i])}
            files |= {f"{name}.cls": str(i % 3).encode(), f"._{i}.png": b"of a system"}
        write_tar(tmp_path / f"s-{shard}.tar", files)
    for place in (tmp_path, tmp_path / "s-{000009..000010}.tar", tmp_path / "s-0000{09,10}.tar"):
        dataset = TarShards(train=str(place))
        data = decode(dataset)
        assert np.array_equal(data.train.pixels, pixels)
        assert data.train.labels.tolist() == [0, 1, 2, 0, 1] and data.class_names == ("0", "1", "2")
        assert len(dataset.sources()) == 2


@pytest.mark.parametrize(
    ("kind", "labels", "names", "numbers"),
    [
        ("txt", [b"owl\n", b"cat", b"owl"], ("cat", "owl"), [1, 0, 1]),
        ("json", [1, 0, 1], ("0", "1"), [1, 0, 1]),
        ("json", ["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        ("json", [["b", "a"], [], ["b"]], ("a", "b"), [[1, 1], [0, 0], [0, 1]]),
        ("json", [[1, 0], [], [1]], ("0", "1"), [[1, 1], [0, 0], [0, 1]]),
    ],
)
def test_labels_are_numbers_names_or_lists(kind, labels, names, numbers, image, tmp_path):
    files = {}
    for i, label in enumerate(labels):
        text = label if kind == "txt" else json.dumps({"label": label}).encode()
        files |= {f"{i}.jpg": image, f"{i}.{kind}": text}
    data = TarShards(train=str(write_tar(tmp_path / "a.tar", files))).listing()
    assert data.class_names == names and data.train.labels.tolist() == numbers


def test_parts_are_used_as_given(tmp_path: Path, image: bytes) -> None:
    for part, labels in {"train": "aba", "val": "b", "test": "ab"}.items():
        files = {f"{i}.png": image for i in range(len(labels))}
        texts = {f"{i}.cls": label.encode() for i, label in enumerate(labels)}
        write_tar(tmp_path / part / "0.tar", files | texts)
    here = str(tmp_path)
    data = TarShards(train=here, validation=here, test=here).listing()
    assert data.train.labels.tolist() == [0, 1, 0, 1] and data.num_validation == 1
    assert data.test is not None and data.test.labels.tolist() == [0, 1]


def test_a_shard_that_changes_is_listed_again(tmp_path: Path, image: bytes) -> None:
    for count in (1, 2):
        files = {f"{i}.png": image for i in range(count)} | {f"{i}.cls": b"0" for i in range(count)}
        write_tar(tmp_path / "a.tar", files)
        assert TarShards(train=str(tmp_path / "a.tar")).num_train() == count


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.png": b"", "b.cls": b"0"}, r"a in .*x\.tar must have one image and a label .*has png"),
        ({"a.png": b"", "a.jpg": b"", "a.cls": b"0"}, "has png, jpg, cls"),
        ({"a.png": b"", "a.json": b"{}"}, r"a\.png in .*x\.tar must be JSON with `label`"),
        ({"a.png": b"", "a.json": b'{"label": [[0]]}'}, r"a number or a name, but is \[\[0\]\]"),
        ({"a.png": b"", "a.cls": b"\xff"}, "must be UTF-8"),
        ({"a.png": b"", "a.cls": b""}, "a number or a name"),
        ({"a.cls": b"0"}, "must hold images with labels"),
        ({"a.png": b"junk", "a.cls": b"0"}, r"a\.png in .*x\.tar must be an image"),
    ],
)
def test_what_is_wrong_is_named(files, message, tmp_path):
    dataset = TarShards(train=str(write_tar(tmp_path / "x.tar", files)))
    with pytest.raises(DataError, match=message):
        decode(dataset)


def test_damaged_and_compressed_shards_are_refused(tmp_path: Path, image: bytes) -> None:
    whole = write_tar(tmp_path / "a.tar", {"a.cls": b"0", "a.png": image * 99}).read_bytes()
    for content, message in (
        (whole[:2000], ""),
        (b"\x1f\x8b" + bytes(600), " an uncompressed tar"),
    ):
        (tmp_path / "a.tar").write_bytes(content)
        with pytest.raises(DataError, match=rf"a\.tar must be{message}"):
            TarShards(train=str(tmp_path / "a.tar")).num_train()
