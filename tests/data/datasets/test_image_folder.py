import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.data.files import decode, encode

from tune_speed.core.errors import DataError
from tune_speed.data.cache import prepare
from tune_speed.data.datasets.decoding import decode_images
from tune_speed.data.datasets.image_folder import ImageFolder
from tune_speed.data.split import SplitConfig, make_splits


@pytest.fixture
def fill(random_pixels: Callable[..., np.ndarray]) -> Callable[..., dict[str, np.ndarray]]:
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


def test_test_part_uses_the_classes_of_training(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, *(f"train/{name}/a.png" for name in ("cat", "dog", "owl")), "test/owl/b.png")
    dataset = ImageFolder(root=str(tmp_path), image_size=4)
    data = decode(dataset)
    assert data.class_names == ("cat", "dog", "owl")
    assert data.test is not None and data.test.labels.tolist() == [2]
    assert dataset.counts() == (3, 1, 0, None) and len(dataset.sources()) == 4


@pytest.mark.parametrize("folder", ["val", "valid", "validation", "dev"])
def test_a_validation_part_alone_is_never_the_test_part(folder, tmp_path, fill):
    names = [f"{part}/{kind}/{i}.png" for part in ("train", folder) for kind in "ab" for i in "123"]
    pixels = fill(tmp_path / "images", *names)
    data = prepare(ImageFolder(root=str(tmp_path / "images"), image_size=4), cache_dir=tmp_path)
    splits = make_splits(data, SplitConfig(test_frac=0.34))
    brought = [pixels[f"{folder}/{kind}/{i}.png"] for kind in "ab" for i in "123"]
    assert np.array_equal(splits.validation.pixels, brought)
    assert [len(part.labels) for part in splits[:3]] == [4, 6, 2]


@pytest.mark.parametrize(
    ("folders", "sizes"),
    [
        ("Train Test", (2, 0, 2)),
        ("train valid", (4, 2, None)),
        ("training testing", (2, 0, 2)),
        ("TRAIN dev Eval", (4, 2, 2)),
        ("train validation test", (4, 2, 2)),
        ("photos/train photos/val photos/test", (4, 2, 2)),
        ("photos", (2, 0, None)),
        ("a/b/c", (2, 0, None)),
    ],
)
def test_every_folder_is_the_part_that_its_name_says(tmp_path, fill, folders, sizes):
    fill(tmp_path, *(f"{part}/{name}/1.png" for part in folders.split() for name in ("b", "a")))
    dataset = ImageFolder(root=str(tmp_path), image_size=4)
    assert (dataset.num_train(), dataset.num_validation(), dataset.num_test()) == sizes
    assert decode(dataset).class_names == ("a", "b")


def test_a_search_is_judged_on_the_validation_part_that_lies_there(tmp_path, fill):
    names = [f"{part}/{name}/1.png" for part in ("train", "val", "test") for name in ("a", "b")]
    pixels = fill(tmp_path / "images", *names)
    dataset = ImageFolder(root=str(tmp_path / "images"), image_size=4)
    data = prepare(dataset, cache_dir=tmp_path / "cache")
    splits = make_splits(data, SplitConfig())
    for part, images in zip(("train", "val", "test"), splits[:3], strict=True):
        assert np.array_equal(images.pixels, [pixels[f"{part}/{name}/1.png"] for name in "ab"])
    both = make_splits(data, SplitConfig(), trained_on="train+validation")
    assert len(both.train.labels) == 4 and splits.copies == 0


def test_hidden_and_system_files_are_passed_over_at_every_depth(tmp_path: Path, fill: Fill) -> None:
    hidden = (".ipynb_checkpoints", ".thumbnails", "@eaDir", "__MACOSX", ".Trash-1000")
    copies = [f"{at}{name}/1.png" for at in ("", "a/", "a/deep/") for name in hidden]
    fill(tmp_path, "a/1.png", "a/deep/2.png", "b/1.png", "b/._1.png", "a/Thumbs.db", *copies)
    dataset = ImageFolder(root=str(tmp_path), image_size=4)
    names = [str(path.relative_to(tmp_path)) for path in dataset.sources()]
    assert names == ["a/1.png", "a/deep/2.png", "b/1.png"]
    assert list(dataset.notes()) == []


def test_images_of_every_name_are_read_and_other_files_counted_and_named(
    tmp_path: Path, fill: Fill, random_pixels: Callable[..., np.ndarray]
) -> None:
    fill(tmp_path, "a/1.png", "b/1.png", "cover.png")
    kinds = {"2.jfif": "JPEG", "3.JPE": "JPEG", "4.jp2": "JPEG2000", "5.avif": "AVIF", "6": "PNG"}
    for name, kind in kinds.items():
        (tmp_path / "a" / name).write_bytes(encode(random_pixels(4, 4, 3), kind=kind))
    for name in ("7.heic", "8.heic", "notes"):
        (tmp_path / "b" / name).write_text("no image")
    dataset = ImageFolder(root=str(tmp_path), image_size=4)
    assert np.bincount(decode(dataset).train.labels).tolist() == [6, 1]
    beside, others = dataset.notes()
    assert "beside class folders: 1 file" in beside and str(tmp_path / "cover.png") in beside
    assert "3 files (2 .heic, 1 no suffix)" in others


def test_linked_folders_are_followed_but_not_round_in_a_circle(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, "root/a/1.png", "root/b/1.png", "far/2.png")
    links = {
        "a/more": "../../far",
        "a/up": "../../root",
        "a/self": "self",
        "a/b.png": "",
        "c": "..",
    }
    for name, target in links.items():
        (tmp_path / "root" / name).symlink_to(target or "nowhere.png")
    dataset = ImageFolder(root=str(tmp_path / "root"), image_size=4)
    assert np.bincount(decode(dataset).train.labels).tolist() == [2, 1]
    assert "2 files" in next(iter(dataset.notes()))


def test_names_that_are_not_utf_8_are_shown_escaped(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path / "old", "b/1.png", os.fsdecode(b"\xe4pfel/\xfc.png"))
    dataset = ImageFolder(root=str(tmp_path / "old"), image_size=4)
    assert prepare(dataset, cache_dir=tmp_path).class_names == ("b", "\\xe4pfel")
    names = [image.name for image in dataset.listing().train.images()]
    assert names == [f"{tmp_path}/old/b/1.png", f"{tmp_path}/old/\\xe4pfel/\\xfc.png"]


def test_one_class_alone_is_refused_by_name(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path / "one", "cats/1.png", "cats/2.png")
    with pytest.raises(DataError, match="`cats`"):
        prepare(ImageFolder(root=str(tmp_path / "one"), image_size=4), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("images", "others", "message"),
    [
        ("", "", r"there is no HERE\. Set `root`"),
        ("", ".", "HERE must hold one folder of images a class"),
        ("train/cat/a", "train/dog", "HERE/train/dog holds none"),
        ("train/cats/a test/cat/a", "", r"`cat` is none of them; did you mean `cats`\?"),
        ("train/cat/a", "test/cat", "HERE/test/cat holds none"),
        ("cat/a", "cat/b.png/", "HERE/cat/b.png must be an image"),
        ("train/a/1 train/b/1 holdout/1", "", r"but holds .*\bholdout\b"),
        ("train/a/1 train/b/1 test/1", "", r"but holds .*\btest\b"),
        ("train/a/1 train/b/1 val/a/1 dev/b/1", "", r"but holds .*\bval\b"),
        ("a/1 b/1 Test/a/1", "", r"but holds .*\ba, b\b"),
        ("Test/a/1 Test/b/1", "", r"but holds .*\bTest\b"),
    ],
)
def test_what_is_wrong_is_named(images, others, message, tmp_path, fill):
    here = tmp_path / "root"
    fill(here, *(f"{name}.png" for name in images.split()))
    for name in others.split():
        if name.endswith("/"):
            (here / name).write_bytes(b"")
        else:
            (here / name).mkdir(parents=True)
    with pytest.raises(DataError, match=message.replace("HERE", str(here))):
        decode(ImageFolder(root=str(here), image_size=4))


def test_a_file_that_vanishes_is_named(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, "cat/a.png", "cat/ö.png")
    dataset = ImageFolder(root=str(tmp_path), image_size=4)
    listing = dataset.listing()
    (tmp_path / "cat" / "ö.png").unlink()
    with pytest.raises(DataError, match=r"ö\.png must stay where it is while it is read"):
        decode_images(listing, dataset, tmp_path, lambda *_: None)


def test_the_only_image_of_a_class_is_trained_on(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path / "x", *(f"a/{i}.png" for i in range(9)), "b/1.png")
    data = prepare(ImageFolder(root=str(tmp_path / "x"), image_size=4), cache_dir=tmp_path)
    splits = make_splits(data, SplitConfig(test_frac=0.3, validation_frac=0.3))
    assert [np.bincount(part.labels).tolist() for part in splits[:3]] == [[4, 1], [2], [3]]


def test_a_tree_that_does_not_change_is_listed_once(tmp_path, fill, monkeypatch):
    fill(tmp_path, *(f"{part}/{kind}/1.png" for part in ("train", "val") for kind in "ab"))
    folders = [tmp_path, *(path for path in tmp_path.rglob("*") if path.is_dir())]
    for folder in folders:
        os.utime(folder, ns=(0, 10**18))
    listed: list[str] = []
    for name in ("listdir", "scandir"):
        found = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda at, found=found: (listed.append(str(at)), found(at))[1]
        )
    dataset = ImageFolder(root=str(tmp_path), image_size=4)
    start = (dataset.counts, dataset.sources, dataset.listing, lambda: [*dataset.notes()])
    found = [call() for call in start]
    assert found[0] == (4, None, 2, None) and len(found[1]) == 4
    assert sorted(listed) == sorted(map(str, folders))
    fill(tmp_path, "train/a/2.png")
    assert dataset.counts().train == 5 and len(dataset.sources()) == 5
