from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.data.files import decode, encode

from tune_speed.core.errors import DataError
from tune_speed.data.datasets.image_folder import ImageTable


@pytest.fixture
def write(tmp_path: Path, random_pixels: Callable[..., np.ndarray]) -> Callable[..., ImageTable]:
    def made(text: str, **fields: str) -> ImageTable:
        for name in "abcdef":
            (tmp_path / f"{name}.png").write_bytes(encode(random_pixels(4, 4, 3)))
        (tmp_path / "x.csv").write_bytes(text.encode("utf-8-sig", "surrogateescape"))
        return ImageTable(file=str(tmp_path / "x.csv"), **fields)

    return made


Write = Callable[..., ImageTable]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_rows_are_images_in_their_parts(delimiter: str, tmp_path: Path, write: Write) -> None:
    rows = ["note,path,label,split", "x,a.png,owl,", "x,b.png,cat,VAL", "x,c.png,cat,train"]
    text = "\r\n".join([*rows, '"two\nlines",d.png,owl,test', "", f"x,{tmp_path}/e.png,cat,test"])
    dataset = write(text.replace(",", delimiter))
    assert dataset.counts() == (3, 2, 1, None)
    data = decode(dataset)
    assert data.class_names == ("cat", "owl") and data.train.labels.tolist() == [1, 0, 0]
    assert data.test is not None and data.test.labels.tolist() == [1, 0]
    names = [path.name for path in dataset.sources()]
    assert names == ["x.csv", *(f"{name}.png" for name in "acbde")]


def test_whole_numbers_are_classes_in_their_order(write: Write) -> None:
    data = write("path,label\na.png,10\nb.png,9\nc.png,100").listing()
    assert data.class_names == ("9", "10", "100") and data.train.labels.tolist() == [1, 0, 2]
    assert data.train.labels.dtype == np.int64 and data.test is None


@pytest.mark.parametrize("separator", ["|", " / "])
def test_an_image_may_have_several_labels_or_none(separator: str, write: Write) -> None:
    text = f"path,label,split\na.png,sea{separator}sky,\nb.png,,\nc.png,sky,\nd.png,sea,test"
    data = write(text, label_separator=separator).listing()
    assert data.class_names == ("sea", "sky") and data.test is not None
    assert data.train.labels.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert data.test.labels.tolist() == [[1, 0]] and data.train.labels.dtype == np.float32


def test_groups_are_those_of_their_column(write: Write) -> None:
    text = "file,kind,patient\na.png,x,7\nb.png,y,5\nc.png,x,7"
    data = write(text, path_column="file", label_column="kind", group_column="patient").listing()
    assert data.groups is not None and data.groups.tolist() == [1, 0, 1]
    assert write("path,label,group\na.png,x,7\nb.png,y,5").counts().grouped is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,x\nb.png", r"line 3 of .*x\.csv must have path, label"),
        ("path,label\n,x", r"line 2 of"),
        ("path,label\na.png,x\nb.png,", r"a label, but line 3 of .* has none"),
        ("path,label,split\na.png,x,train\nb.png,x,hold", r"`split` .*'hold' in line 3"),
        ("path,label,split\na.png,cat,\nb.png,cart,test", r"line 3 .*`cart`; did you mean `cat`"),
        ("path,label,split,group\na.png,x,,7\nb.png,x,test,7", "line 3 .*'7', is in test and"),
        ("path,class\na.png,x", r"column `label`, but has only path, class.* Set `label_column`"),
        ("path,label,split\na.png,x,test", "lists none"),
        ('path,label\n"a.png"b,x', r"line 2 of .*x\.csv must be CSV"),
        ("", "column `path`"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str, write: Write) -> None:
    with pytest.raises(DataError, match=message):
        write(text).listing()


@pytest.mark.parametrize("damage", ["gone", "junk"])
def test_a_file_that_cannot_be_read_is_named_with_its_line(damage, tmp_path, write):
    dataset = write("path,label\na.png,x\nb.png,y")
    (tmp_path / "b.png").write_bytes(b"junk")
    if damage == "gone":
        (tmp_path / "b.png").unlink()
    with pytest.raises(DataError, match=r"b\.png \(line 3 of .*x\.csv\)"):
        decode(dataset)


def test_names_that_are_not_utf_8_are_read_and_shown_escaped(tmp_path: Path, write: Write) -> None:
    dataset = write("path,label\na.png,\udce4pfel\n\udcfc.png,b")
    (tmp_path / "\udcfc.png").write_bytes((tmp_path / "a.png").read_bytes())
    assert decode(dataset).class_names == ("b", "\\xe4pfel")


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no .*none\.csv"):
        ImageTable(file=str(tmp_path / "none.csv")).num_train()
