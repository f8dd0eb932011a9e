import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.data.files import decode, encode, write_parquet

from tune_speed.core.errors import DataError
from tune_speed.data.datasets.image_parquet import ImageParquet

Pixels = Callable[..., np.ndarray]


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
        with pytest.raises(DataError, match=rf"`{field}` must be .*/b does not exist"):
            dataset.sources()
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=r"holds no \*\.parquet or \*\.arrow files"):
        ImageParquet(train=str(tmp_path / "b")).num_train()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label_column": "labels"}, r"`labels`, .* img, label, note; did you mean `label`\?"),
        ({"image_column": "image"}, "column `image`.* Set `image_column`"),
        ({"image_column": "note"}, "`note` .* must hold encoded images"),
        ({"image_column": "label"}, "`label` .* encoded images"),
    ],
)
def test_a_wrong_column_is_named(tmp_path, images, columns, message):
    path = str(write_parquet(tmp_path / "a.parquet", images, [0] * 7))
    with pytest.raises(DataError, match=message):
        decode(ImageParquet(train=path, **columns))


@pytest.mark.parametrize(
    ("labels", "names", "tested", "message"),
    [
        ([0, 1, None], None, [], "row 2 of .*a.parquet is null"),
        ([0, -1, 1], None, [], "Labels must lie in 0 to 1, but row 1 of .*a.parquet has -1"),
        ([0, 1, 7], None, [], "largest is 7 with 3 images"),
        ([0, 1, 2, 0], ["cat", "dog"], [], "0 to 1, but row 2 of .* has 2"),
        ([0, 1, 1, 0], None, [0, 2], r"0 to 1, but row 1 of .*b\.parquet has 2"),
        ([0.5, 1.0], None, [], "`label` .* must hold integers, texts .* holds double"),
    ],
)
def test_a_wrong_label_is_named(tmp_path, images, labels, names, tested, message):
    kind = pa.float64() if labels[0] == 0.5 else None
    count = len(labels)
    train = write_parquet(
        tmp_path / "a.parquet", images[:count], labels, names=names, label_type=kind
    )
    test = write_parquet(tmp_path / "b.parquet", images[: len(tested)], tested)
    with pytest.raises(DataError, match=message):
        decode(ImageParquet(train=str(train), test=str(test) if tested else None))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_texts_are_classes_in_sorted_order(tmp_path, images, kind):
    path = write_parquet(tmp_path / "a.parquet", images[:3], ["owl", "cat", "owl"], label_type=kind)
    data = decode(ImageParquet(train=str(path)))
    assert data.class_names == ("cat", "owl") and data.train.labels.tolist() == [1, 0, 1]
    test = write_parquet(tmp_path / "b.parquet", images[:2], ["owl", "cart"], label_type=kind)
    with pytest.raises(DataError, match=r"row 1 of .*b\.parquet has `cart`; did you mean `cat`"):
        ImageParquet(train=str(path), test=str(test)).listing()


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [
        (pa.list_(pa.int64()), [[1], [], [2, 0]], ("0", "1", "2")),
        (pa.large_list(pa.string()), [["b"], [], ["c", "a"]], ("a", "b", "c")),
    ],
)
def test_lists_are_labels_of_images_of_several_classes(tmp_path, images, kind, values, names):
    path = write_parquet(tmp_path / "a.parquet", images[:3], values, label_type=kind)
    data = ImageParquet(train=str(path)).listing()
    assert data.class_names == names and data.train.labels.dtype == np.float32
    assert data.train.labels.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 1]]


def test_names_of_classes_in_lists_come_from_the_metadata(tmp_path, images):
    path = tmp_path / "a.parquet"
    for feature in ({"feature": {"names": ["x", "y", "z"]}}, [{"names": ["x", "y", "z"]}]):
        info = json.dumps({"info": {"features": {"label": feature}}})
        table = pa.table({"img": images[:2], "label": [[0], [1]]})
        pq.write_table(table.replace_schema_metadata({"huggingface": info}), path)
        assert ImageParquet(train=str(path)).listing().class_names == ("x", "y", "z")


@pytest.mark.parametrize("name", ["image", "photo"])
def test_the_column_of_images_is_found_unless_it_is_given(tmp_path, images, name):
    table = pa.table({"id": [1, 2], name: images[:2], "label": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = ImageParquet(train=str(tmp_path / "a.parquet"))
    assert len(decode(dataset).train.labels) == 2 and dataset.image_column == "img"


def test_images_may_be_files_beside(tmp_path: Path, images: list[bytes]) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/ö.png").write_bytes(images[0])
    rows = [{"bytes": None, "path": "photos/ö.png"}, {"bytes": images[1], "path": "gone.png"}]
    pq.write_table(pa.table({"image": rows, "label": [0, 1]}), tmp_path / "a.parquet")
    assert len(decode(ImageParquet(train=str(tmp_path / "a.parquet"))).train.labels) == 2
    rows[1]["bytes"] = None
    pq.write_table(pa.table({"image": rows, "label": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row 1 of .*, and there is no file .*gone\.png"):
        decode(ImageParquet(train=str(tmp_path / "a.parquet")))


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_what_save_to_disk_writes_is_read(tmp_path, images, kind):
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "owl"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for part, (start, end) in {"train": (0, 4), "validation": (4, 6), "test": (6, 7)}.items():
        structs = [{"bytes": image, "path": None} for image in images[start:end]]
        columns = {"image": structs, "label": [0, 1, 1, 0][: len(structs)]}
        table = pa.table(columns).replace_schema_metadata(metadata)
        (tmp_path / part).mkdir()
        for number in range(2 if part == "train" else 1):
            some = table.slice(2 * number, 2)
            path = tmp_path / part / f"data-0000{number}-of-00002.arrow"
            new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
            with new(path, table.schema) as writer:
                writer.write_table(some, max_chunksize=1)
        (tmp_path / part / "cache-1f.arrow").write_bytes(b"of `datasets` itself")
        (tmp_path / part / "state.json").write_text("{}")
    here = str(tmp_path)
    dataset = ImageParquet(train=here, validation=here, test=here)
    assert dataset.counts() == (6, 1, 2, None)
    data = decode(dataset)
    assert data.class_names == ("cat", "owl") and data.num_validation == 2
    assert data.train.labels.tolist() == [0, 1, 1, 0, 0, 1]
    (tmp_path / "test/data-00000-of-00002.arrow").write_bytes(b"ARROW1")
    with pytest.raises(DataError, match="must be a readable Arrow file"):
        decode(dataset)


def test_groups_are_numbered_and_are_in_one_part_alone(tmp_path: Path, images: list[bytes]) -> None:
    for name, patients in (("a", ["p2", "p1", "p2"]), ("b", ["p1"])):
        table = pa.table(
            {"img": images[: len(patients)], "label": [0] * len(patients), "patient": patients}
        )
        pq.write_table(table, tmp_path / f"{name}.parquet")
    train, test = str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")
    dataset = ImageParquet(train=train, group_column="patient")
    grouped = dataset.counts().grouped
    assert grouped is not None and grouped.groups.tolist() == [1, 0, 1]
    with pytest.raises(DataError, match="'p1' is also in `test`"):
        ImageParquet(train=train, test=test, group_column="patient").listing()
    assert "group_column" not in ImageParquet(train=train).model_dump()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([b"junk"], r"row 4 of .*a\.parquet"),
        ([None], r"row 4 of .*a\.parquet"),
        ([], r"a\.parquet must hold images"),
    ],
)
def test_a_row_with_a_bad_image_is_named(tmp_path, images, bad, message):
    rows = [*images[:4], *bad] if bad else []
    path = write_parquet(tmp_path / "a.parquet", rows, [0] * len(rows))
    with pytest.raises(DataError, match=message):
        decode(ImageParquet(train=str(path)))
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match="must be a readable Parquet file"):
        ImageParquet(train=str(path)).num_train()


def test_sizes_are_known_without_decoding(tmp_path: Path) -> None:
    train = write_parquet(tmp_path / "a.parquet", [b"junk"] * 5, [0] * 5)
    test = write_parquet(tmp_path / "b.parquet", [b"junk"] * 2, [0] * 2)
    dataset = ImageParquet(train=str(train), test=str(test))
    assert (dataset.num_train(), dataset.num_test()) == (5, 2)
    assert ImageParquet(train=str(train)).num_test() is None
