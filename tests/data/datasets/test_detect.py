import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.data.files import encode, write_parquet, write_tar

from tune_speed.core.errors import DataError
from tune_speed.data.cache import prepare
from tune_speed.data.datasets.arrays import Arrays
from tune_speed.data.datasets.detect import described, detect
from tune_speed.data.datasets.image_folder import ImageFolder, ImageTable
from tune_speed.data.datasets.image_parquet import ImageParquet
from tune_speed.data.datasets.shards import TarShards
from tune_speed.data.split import SplitConfig, make_splits

Pixels = Callable[..., np.ndarray]


def fill(folder: Path, pixels: list[np.ndarray]) -> Path:
    for number, image in enumerate(pixels):
        path = folder / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(image))
    return folder


def shard(path: Path, random_pixels: Pixels, side: int = 28) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [encode(pixels) for pixels in random_pixels(2, side, side, 3)]
    return write_parquet(path, images, [0, 1])


@pytest.mark.parametrize(
    ("height", "width", "fields"),
    [
        (28, 28, {"image_size": 28}),
        (80, 80, {"image_size": 64}),
        (97, 97, {"store_size": 74}),
        (50, 70, {"store_size": 58}),
        (300, 200, {"store_size": 74}),
    ],
)
def test_small_squares_are_scaled_to_a_usual_side_and_others_stored_a_little_larger(
    height: int, width: int, fields: dict[str, int], tmp_path: Path, random_pixels: Pixels
) -> None:
    fill(tmp_path, list(random_pixels(4, height, width, 3)))
    assert detect(tmp_path, most_pixels=64) == ImageFolder(root=str(tmp_path), **fields)
    fill(tmp_path, list(random_pixels(1, 16, 16, 3)))  # of several sizes are photographs
    assert detect(tmp_path, most_pixels=64).model_dump().get("store_size", 0) > 16


def test_a_table_of_images_is_found_with_its_columns(tmp_path: Path, random_pixels: Pixels) -> None:
    fill(tmp_path / "photos", list(random_pixels(2, 28, 28, 3)))
    rows = "Filename;n;class\nphotos/class0/0.png;7;b\nphotos/class1/1.png;8;a\n"
    (tmp_path / "labels.csv").write_text(rows)
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    (tmp_path / "other.csv").write_text("path,label\ngone.png,2\n")
    file, fields = tmp_path / "labels.csv", {"path_column": "Filename", "label_column": "class"}
    for place in (tmp_path, file):
        found = detect(place, most_pixels=64)
        assert found == ImageTable(file=str(file), **fields, image_size=28)
    with pytest.raises(DataError, match=r"a column of files, .* but has only a, b"):
        detect(tmp_path / "notes.csv", most_pixels=64)


def test_a_pair_of_arrays_is_found(tmp_path: Path, random_pixels: Pixels) -> None:
    np.save(tmp_path / "images.npy", random_pixels(4, 8, 8))
    with pytest.raises(DataError, match=r"images\.npy and labels\.npy"):
        detect(tmp_path, most_pixels=64)
    np.save(tmp_path / "labels.npy", np.arange(4) % 2)
    places = {name: str(tmp_path / f"{name}.npy") for name in ("images", "labels")}
    for place in (tmp_path, tmp_path / "images.npy"):
        assert detect(place, most_pixels=64) == Arrays(**places)


def test_tar_shards_are_found_with_their_parts(tmp_path: Path, random_pixels: Pixels) -> None:
    for name in ("train-0", "train-1", "val-0"):
        files = {"a.png": encode(random_pixels(8, 8, 3)), "a.cls": b"0"}
        write_tar(tmp_path / f"{name}.tar", files)
    found = detect(tmp_path, most_pixels=64)
    train, validation = str(tmp_path), str(tmp_path / "val-0.tar")
    assert found == TarShards(train=train, validation=validation, image_size=8)
    assert found.counts() == (3, None, 1, None)


def test_a_file_of_equal_images_is_read_as_it_is(tmp_path: Path, random_pixels: Pixels) -> None:
    file = shard(tmp_path / "all.parquet", random_pixels)
    assert detect(file, most_pixels=64) == ImageParquet(train=str(file))
    scaled = detect(file, most_pixels=24)
    assert isinstance(scaled, ImageParquet) and scaled.image_size == 24


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("train.parquet", "validation.parquet"),
        ("train/0.parquet", "val/0.parquet"),
        ("cifar-train.parquet", "cifar-Test.parquet"),
        ("valentines.parquet", "dev.parquet"),
    ],
)
def test_parts_are_known_by_their_names(train, test, tmp_path, random_pixels):
    files = [shard(tmp_path / name, random_pixels) for name in (train, test)]
    found = detect(tmp_path, most_pixels=64)
    part = "test" if "test" in test.lower() else "validation"
    assert found == ImageParquet(**{"train": str(files[0]), part: str(files[1])})


def test_a_validation_part_beside_a_test_part_is_one(tmp_path: Path, random_pixels: Pixels) -> None:
    for name in ("train-00000", "validation-00000", "test-00000", ".hidden/train", "._train"):
        shard(tmp_path / f"{name}.parquet", random_pixels)
    found = detect(tmp_path, most_pixels=64)
    assert isinstance(found, ImageParquet)
    assert found.validation == str(tmp_path / "validation-00000.parquet")
    assert (found.num_train(), found.num_validation(), found.num_test()) == (4, 2, 2)
    splits = make_splits(prepare(found, cache_dir=tmp_path / "cache"), SplitConfig())
    assert [len(part.labels) for part in splits[:3]] == [2, 2, 2]


@pytest.mark.parametrize("names", [("train", "unlabelled"), ("val", "test")])
def test_files_that_are_of_no_part_are_named(names, tmp_path, random_pixels):
    for name in names:
        shard(tmp_path / f"{name}.parquet", random_pixels)
    with pytest.raises(DataError, match=names[1]):
        detect(tmp_path, most_pixels=64)
    with pytest.raises(DataError, match=f"several.*{names[1]}.parquet"):
        ImageParquet(train=str(tmp_path)).sources()


def test_several_files_of_a_part_are_their_folder(tmp_path: Path, random_pixels: Pixels) -> None:
    for name in ("train/0", "train/1", "test/0"):
        shard(tmp_path / f"{name}.parquet", random_pixels)
    found = detect(tmp_path, most_pixels=64)
    assert found == ImageParquet(
        train=str(tmp_path / "train"), test=str(tmp_path / "test/0.parquet")
    )
    assert found.num_train() == 4


def test_files_of_two_parts_in_one_folder_are_told_apart(tmp_path, random_pixels):
    for name in ("train-0", "train-1", "test-0", "old/train-2"):
        shard(tmp_path / f"{name}.parquet", random_pixels)
    found = detect(tmp_path, most_pixels=64)
    test = str(tmp_path / "test-0.parquet")
    assert found == ImageParquet(train=str(tmp_path), test=test)
    assert found.counts() == (6, 2, 0, None)


@pytest.mark.parametrize("labels", [[0, 1], ["cat", "dog"]])
def test_columns_are_found_by_what_they_hold(labels, tmp_path, random_pixels):
    photos = [encode(pixels) for pixels in random_pixels(2, 8, 8, 3)]
    table = pa.table({"id": [7, 8], "fine_label": labels, "photo": photos})
    pq.write_table(table, tmp_path / "a.parquet")
    found = detect(tmp_path / "a.parquet", most_pixels=64)
    assert isinstance(found, ImageParquet)
    assert (found.image_column, found.label_column) == ("photo", "fine_label")
    assert found.listing().class_names == tuple(map(str, labels))


@pytest.mark.parametrize(("column", "missing"), [("x", "encoded images"), ("img", "integers")])
def test_a_file_without_images_or_labels_is_refused(column, missing, tmp_path):
    values = pa.array([1, 2]) if column == "x" else pa.array([b"a", b"b"])
    pq.write_table(pa.table({column: values}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=f"must have a column of {missing}"):
        detect(tmp_path, most_pixels=64)


def test_a_place_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold one folder of images a class"):
        detect(tmp_path, most_pixels=64)
    with pytest.raises(DataError, match=r"there is no .*/nowhere"):
        detect(tmp_path / "nowhere", most_pixels=64)


def test_names_that_are_not_utf_8_are_named(tmp_path: Path, random_pixels: Pixels) -> None:
    place = tmp_path / "data" / os.fsdecode(b"\xe4pfel")
    place.mkdir(parents=True)
    with pytest.raises(DataError, match=r"\\xe4pfel must have a name in UTF-8"):
        detect(place, most_pixels=64)
    shard(tmp_path / "a", random_pixels).rename(place / "train.parquet")
    with pytest.raises(DataError, match=r"pfel/train\.parquet"):
        detect(tmp_path / "data", most_pixels=64)


def test_of_photographs_it_says_sizes_balance_and_what_is_there_twice(
    tmp_path: Path, random_pixels: Pixels
) -> None:
    first, *others = random_pixels(31, 100, 120, 3)
    fill(tmp_path, [first])
    (tmp_path / "class1").mkdir()
    for number, pixels in enumerate([first, first, *others]):
        (tmp_path / f"class1/{number}.png").write_bytes(encode(pixels))
    dataset = detect(tmp_path, most_pixels=64)
    sizes, balance, repeated = described(dataset, prepare(dataset))
    assert "100 to 100 pixels" in sizes
    assert "1 (class0) to 32 (class1)" in balance and "class_weights" in balance
    assert "2 of 33 images" in repeated and "2 of them in another class" in repeated
    assert not [*described(ImageFolder(root=str(tmp_path), image_size=8), prepare(dataset))]
