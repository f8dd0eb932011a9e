from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from image_files import encode

from tune_speed.core.errors import DataError
from tune_speed.data.base import DecodedData
from tune_speed.data.datasets.image_folder import ImageFolder


def decode(dataset: ImageFolder) -> DecodedData:
    return dataset.decode(download=False, on_progress=lambda *_: None)


@pytest.fixture
def fill(random_pixels: Callable[..., np.ndarray]) -> Callable[..., dict[str, np.ndarray]]:
    """Returns what writes images at the given paths and gives back their pixels."""

    def write(root: Path, *names: str) -> dict[str, np.ndarray]:
        pixels = {name: random_pixels(4, 4, 3) for name in names}
        for name, image in pixels.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(encode(image))
        return pixels

    return write


Fill = Callable[..., dict[str, np.ndarray]]


def test_folders_are_classes_in_name_order(tmp_path: Path, fill: Fill) -> None:
    names = ["owl/a.png", "cat/2.png", "cat/1.PNG", "cat/deep/3.png", ".git/x.png"]
    pixels = fill(tmp_path, *names)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    data = decode(ImageFolder(root=str(tmp_path), image_size=4))
    order = ["cat/1.PNG", "cat/2.png", "cat/deep/3.png", "owl/a.png"]
    assert np.array_equal(data.train.pixels, [pixels[name] for name in order])
    assert data.train.labels.tolist() == [0, 0, 0, 1]
    assert data.class_names == ("cat", "owl") and data.test is None


@pytest.mark.parametrize("test_folder", ["test", "val"])
def test_test_part_uses_the_classes_of_training(
    tmp_path: Path, fill: Fill, test_folder: str
) -> None:
    fill(
        tmp_path,
        "train/cat/a.png",
        "train/dog/a.png",
        "train/owl/a.png",
        f"{test_folder}/owl/b.png",
    )
    dataset = ImageFolder(root=str(tmp_path), image_size=4)
    data = decode(dataset)
    assert data.class_names == ("cat", "dog", "owl")
    assert data.test is not None and data.test.labels.tolist() == [2]
    assert (dataset.num_train(), dataset.num_test(), len(dataset.sources())) == (3, 1, 4)


def test_test_comes_before_val(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, "train/cat/a.png", "val/cat/b.png", "test/cat/c.png", "test/cat/d.png")
    assert ImageFolder(root=str(tmp_path), image_size=4).num_test() == 2


def test_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"there is no {tmp_path / 'none'}\. Set `root`"):
        ImageFolder(root=str(tmp_path / "none"), image_size=4).num_train()


def test_root_without_folders_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold one folder of images a class"):
        ImageFolder(root=str(tmp_path), image_size=4).num_train()


def test_empty_class_folder_is_named(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, "train/cat/a.png")
    (tmp_path / "train" / "dog").mkdir()
    with pytest.raises(DataError, match=rf"{tmp_path / 'train' / 'dog'} holds none"):
        ImageFolder(root=str(tmp_path), image_size=4).sources()


def test_unknown_class_of_the_test_part_is_named(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, "train/cats/a.png", "test/cat/a.png")
    with pytest.raises(DataError, match=r"`cat` is none of them; did you mean `cats`\?"):
        ImageFolder(root=str(tmp_path), image_size=4).num_test()


def test_test_part_without_images_is_refused(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, "train/cat/a.png")
    (tmp_path / "test" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=f"{tmp_path / 'test'} must hold images"):
        ImageFolder(root=str(tmp_path), image_size=4).num_test()


def test_damaged_file_is_named(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, "cat/a.png", "cat/b.png")
    (tmp_path / "cat" / "b.png").write_bytes(b"")
    with pytest.raises(DataError, match=rf"{tmp_path / 'cat' / 'b.png'} must be an image"):
        decode(ImageFolder(root=str(tmp_path), image_size=4))
