from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers.data.files import encode, write_parquet

from tune_speed.core.errors import DataError
from tune_speed.data.base import DecodedData
from tune_speed.data.datasets.image_parquet import ImageParquet

Pixels = Callable[..., np.ndarray]


def decode(dataset: ImageParquet) -> DecodedData:
    return dataset.decode(download=False, on_progress=lambda *_: None)


@pytest.fixture
def images(random_pixels: Pixels) -> list[bytes]:
    return [encode(pixels) for pixels in random_pixels(7, 4, 5, 3)]


@pytest.mark.parametrize("as_struct", [True, False])
def test_rows_come_back_in_order(tmp_path: Path, random_pixels: Pixels, as_struct: bool) -> None:
    pixels, labels = random_pixels(7, 4, 5, 3), [2, 0, 1, 1, 0, 2, 2]
    path = write_parquet(
        tmp_path / "a.parquet", [*map(encode, pixels)], labels, as_struct=as_struct
    )
    data = decode(ImageParquet(train=str(path)))
    assert np.array_equal(data.train.pixels, pixels)
    assert data.train.labels.tolist() == labels
    assert data.class_names == ("0", "1", "2") and data.test is None


def test_folder_of_files_is_read_in_name_order(tmp_path: Path, images: list[bytes]) -> None:
    write_parquet(tmp_path / "part-2.parquet", images[:2], [1, 0])
    write_parquet(tmp_path / "part-1.parquet", images[2:], [2, 2, 2, 2, 2])
    dataset = ImageParquet(train=str(tmp_path))
    assert decode(dataset).train.labels.tolist() == [2, 2, 2, 2, 2, 1, 0]
    assert dataset.num_train() == 7 and len(dataset.sources()) == 2


def test_class_names_come_from_the_metadata(tmp_path: Path, images: list[bytes]) -> None:
    path = write_parquet(tmp_path / "a.parquet", images[:2], [1, 0], names=["cat", "dog", "owl"])
    assert decode(ImageParquet(train=str(path))).class_names == ("cat", "dog", "owl")


def test_missing_file_is_named(tmp_path: Path, images: list[bytes]) -> None:
    path = write_parquet(tmp_path / "a.parquet", images, [0] * 7)
    for dataset, field in (
        (ImageParquet(train=str(tmp_path / "b")), "train"),
        (ImageParquet(train=str(path), test=str(tmp_path / "b")), "test"),
    ):
        with pytest.raises(
            DataError, match=rf"`{field}` must be .*{tmp_path / 'b'} does not exist"
        ):
            dataset.sources()


def test_folder_without_parquet_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no \*\.parquet files"):
        ImageParquet(train=str(tmp_path)).num_train()


def test_unknown_column_is_named_with_the_nearest(tmp_path: Path, images: list[bytes]) -> None:
    path = str(write_parquet(tmp_path / "a.parquet", images, [0] * 7))
    with pytest.raises(DataError, match=r"`labels`, .* img, label, note; did you mean `label`\?"):
        decode(ImageParquet(train=path, label_column="labels"))
    with pytest.raises(DataError, match=r"column `image`.* Set `image_column`"):
        decode(ImageParquet(train=path, image_column="image"))


@pytest.mark.parametrize(
    ("column", "message"),
    [("note", "`note` .* must hold encoded images"), ("label", "`label` .* encoded images")],
)
def test_column_without_images_is_refused(tmp_path, images, column, message):
    path = str(write_parquet(tmp_path / "a.parquet", images, [0] * 7))
    with pytest.raises(DataError, match=message):
        decode(ImageParquet(train=path, image_column=column))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, None], "row 2 of .*a.parquet is null"),
        ([0, -1, 1], "Labels must lie in 0 to 1, but row 1 of .*a.parquet has -1"),
        ([0, 1, 7], "largest is 7 with 3 images"),
    ],
)
def test_wrong_label_is_named(tmp_path, images, labels, message):
    path = write_parquet(tmp_path / "a.parquet", images[:3], labels)
    with pytest.raises(DataError, match=message):
        decode(ImageParquet(train=str(path)))


def test_label_beyond_the_named_classes_is_refused(tmp_path: Path, images: list[bytes]) -> None:
    path = write_parquet(tmp_path / "a.parquet", images[:4], [0, 1, 2, 0], names=["cat", "dog"])
    with pytest.raises(DataError, match=r"0 to 1, but row 2 of .* has 2"):
        decode(ImageParquet(train=str(path)))


def test_test_label_that_training_lacks_is_refused(tmp_path: Path, images: list[bytes]) -> None:
    train = write_parquet(tmp_path / "a.parquet", images[:4], [0, 1, 1, 0])
    test = write_parquet(tmp_path / "b.parquet", images[4:6], [0, 2])
    with pytest.raises(DataError, match=r"0 to 1, but row 1 of .*b.parquet has 2"):
        decode(ImageParquet(train=str(train), test=str(test)))


def test_labels_that_are_no_integers_are_refused(tmp_path: Path, images: list[bytes]) -> None:
    path = write_parquet(tmp_path / "a.parquet", images[:2], ["cat", "dog"], label_type=pa.string())
    with pytest.raises(DataError, match=r"`label` .* must hold integers, but holds string"):
        decode(ImageParquet(train=str(path)))


@pytest.mark.parametrize("bad", [b"junk", None])
def test_row_with_a_bad_image_is_named(tmp_path, images, bad):
    path = write_parquet(tmp_path / "a.parquet", [*images[:4], bad, *images[5:]], [0] * 7)
    with pytest.raises(DataError, match=r"row 4 of .*a\.parquet"):
        decode(ImageParquet(train=str(path)))


def test_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match="must be a readable Parquet file"):
        ImageParquet(train=str(tmp_path / "a.parquet")).num_train()


def test_file_without_rows_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [], [])
    with pytest.raises(DataError, match=r"a\.parquet must hold images"):
        decode(ImageParquet(train=str(path)))


def test_sizes_are_known_without_decoding(tmp_path: Path) -> None:
    train = write_parquet(tmp_path / "a.parquet", [b"junk"] * 5, [0] * 5)
    test = write_parquet(tmp_path / "b.parquet", [b"junk"] * 2, [0] * 2)
    dataset = ImageParquet(train=str(train), test=str(test))
    assert (dataset.num_train(), dataset.num_test()) == (5, 2)
    assert ImageParquet(train=str(train)).num_test() is None
