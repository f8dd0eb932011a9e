from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.data.files import decode, encode, write_mnist
from pydantic import ValidationError
from torchvision import datasets

from tune_speed.core.errors import DataError
from tune_speed.data.datasets.builtin import KINDS, TorchvisionSet

Pixels = Callable[..., np.ndarray]


def test_arrays_are_those_of_torchvision(tmp_path: Path) -> None:
    pixels = write_mnist(tmp_path / "FashionMNIST" / "raw", {"train": 30, "t10k": 10})
    dataset = TorchvisionSet(set="FashionMNIST", root=str(tmp_path))
    data = decode(dataset)
    assert np.array_equal(data.train.pixels, pixels["train"][..., None])
    theirs = datasets.FashionMNIST(str(tmp_path), train=False)
    assert data.test is not None and data.test.labels.tolist() == [label for _, label in theirs]
    assert data.class_names == tuple(theirs.classes) and dataset.counts() == (30, 10, 0, None)
    assert len(dataset.sources()) == 4


def test_images_in_files_are_listed_by_their_paths(tmp_path: Path, random_pixels: Pixels) -> None:
    base = tmp_path / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    (base / "images").mkdir()
    names = [f"{kind}_{i}" for kind in ("Abyssinian", "pug_dog") for i in range(3)]
    for name in names:
        (base / "images" / f"{name}.jpg").write_bytes(encode(random_pixels(9, 7, 3), kind="jpeg"))
    rows = [f"{name} {1 + ('pug' in name)} 1 1" for name in names]
    for part, of in {"trainval": rows[::3] + rows[1::3], "test": rows[2::3]}.items():
        (base / "annotations" / f"{part}.txt").write_text("\n".join(of))
    data = TorchvisionSet(set="OxfordIIITPet", root=str(tmp_path)).listing()
    assert [Path(image.name).stem for image in data.train.images()] == [
        row.split()[0] for row in rows[::3] + rows[1::3]
    ]
    assert data.train.labels.tolist() == [0, 1, 0, 1] and data.test is not None
    assert data.class_names == ("Abyssinian", "Pug Dog") and data.test.labels.tolist() == [0, 1]


class StandIn:
    """Channels first, in all parts; the validation part has two images."""

    def __init__(self, root: str, split: str, download: bool = False) -> None:
        self.data = np.full((2, 3, 4, 5), len(split), np.uint8)
        self.labels = [1, 0]


def test_three_parts_are_used_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "DTD", StandIn)
    dataset = TorchvisionSet(set="DTD", root=str(tmp_path))
    data = dataset.decode(download=True, on_progress=lambda *_: None)
    assert data.train.pixels.shape == (4, 4, 5, 3) and data.num_validation == 2
    assert data.train.pixels[:, 0, 0, 0].tolist() == [5, 5, 3, 3]
    assert data.class_names == ("0", "1") and dataset.counts() == (4, 2, 2, None)


def test_missing_files_and_names_say_what_to_try(tmp_path: Path) -> None:
    for name in ("MNIST", "SVHN", "Flowers102"):
        with pytest.raises(DataError, match=rf"must hold {name} .* Try `--download`"):
            TorchvisionSet(set=name, root=str(tmp_path)).num_train()
    with pytest.raises(ValidationError, match="did you mean `FashionMNIST`"):
        TorchvisionSet(set="FashionMNST")


def test_every_name_is_known_to_torchvision() -> None:
    assert all(isinstance(getattr(datasets, name), type) for name in KINDS)
