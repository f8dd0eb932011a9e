from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.data.files import decode
from pydantic import ValidationError

from tune_speed.core.errors import DataError
from tune_speed.data.cache import prepare
from tune_speed.data.datasets import arrays
from tune_speed.data.datasets.arrays import Arrays
from tune_speed.data.split import SplitConfig, make_splits


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Arrays]:
    def made(scale: dict[str, int] | None = None, **given: np.ndarray) -> Arrays:
        for name, array in given.items():
            np.save(tmp_path / f"{name}.npy", array)
        places = {name: str(tmp_path / f"{name}.npy") for name in given}
        return Arrays.model_validate({**places, "scale": scale})

    return made


Save = Callable[..., Arrays]
Pixels = Callable[..., np.ndarray]


@pytest.mark.parametrize("shape", [(6, 5, 4), (6, 5, 4, 3), (6, 5, 4, 13)])
def test_images_of_any_number_of_channels_stay_in_their_file(shape, save, random_pixels, tmp_path):
    pixels = random_pixels(*shape)
    dataset = save(images=pixels, labels=np.array([2, 0, 1, 1, 0, 2]))
    data = decode(dataset)
    assert np.array_equal(data.train.pixels, pixels.reshape(6, 5, 4, -1))
    base = data.train.pixels
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap) and dataset.counts() == (6, None, 0, None)
    assert data.class_names == ("0", "1", "2")
    splits = make_splits(prepare(dataset, cache_dir=tmp_path / "cache"), SplitConfig())
    assert splits.train.pixels.shape[1:] == data.train.pixels.shape[1:]


def test_16_bits_are_scaled_linearly(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 256)
    values = np.arange(0, 65536, 16, dtype=np.uint16).reshape(64, 8, 8)
    seen: list[tuple[int, int]] = []
    dataset = save(images=values, labels=np.arange(64) % 2, scale={"low": 1000, "high": 5000})
    data = dataset.decode(download=False, on_progress=lambda *done: seen.append(done))
    exact = np.clip((values.astype(float) - 1000) / 4000, 0, 1) * 255
    assert abs(data.train.pixels[..., 0] - exact).max() <= 0.5
    assert len(seen) > 10 and seen[-1] == (64, 64)
    with pytest.raises(DataError, match=r"uint16 with `scale: \{low"):
        decode(save(images=values, labels=np.arange(64) % 2))
    with pytest.raises(ValidationError, match="high must be above low"):
        save(images=values, labels=np.arange(64), scale={"low": 3, "high": 3})


def test_parts_are_used_as_given(save: Save, random_pixels: Pixels) -> None:
    pixels, labels = random_pixels(9, 5, 4), np.array(["owl", "cat", "owl"] * 3)
    names = ("", "validation_", "test_")
    images = {f"{name}images": pixels[3 * i : 3 * i + 3] for i, name in enumerate(names)}
    dataset = save(**images, **{f"{name}labels": labels[:3] for name in names})
    data = decode(dataset)
    assert dataset.counts() == (6, 3, 3, None) and data.num_validation == 3
    assert np.array_equal(data.train.pixels[..., 0], pixels[:6]) and data.test is not None
    assert np.array_equal(data.test.pixels[..., 0], pixels[6:])
    assert data.class_names == ("cat", "owl") and data.train.labels.tolist() == [1, 0, 1] * 2
    assert len(dataset.sources()) == 6


def test_labels_may_be_several_and_images_in_groups(save: Save, random_pixels: Pixels) -> None:
    labels = np.array([[1, 0], [0, 0], [1, 1]], bool)
    data = decode(save(images=random_pixels(3, 4, 4), labels=labels, groups=np.array([7, 5, 7])))
    assert data.train.labels.tolist() == labels.tolist() and data.train.labels.dtype == np.float32
    assert data.groups is not None and data.groups.tolist() == [1, 0, 1]


SOUND = {"images": np.zeros((3, 4, 4), np.uint8), "labels": np.zeros(3, int)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"images": np.zeros((3, 4), np.uint8)}, r"images\.npy must hold uint8"),
        ({"images": np.zeros((3, 4, 4))}, "but holds float64"),
        ({"labels": np.zeros(2, int)}, r"labels\.npy must hold a label.* each of the 3 .*\(2,\)"),
        ({"labels": np.zeros(3)}, "must hold integers or texts, but holds float64"),
        ({"labels": np.full((3, 2), 2)}, "must hold 0 and 1 alone"),
        ({"labels": np.array([0, -1, 0])}, r"0 to 0, but row 1 of .*labels\.npy has -1"),
        ({"labels": np.array([None, 1, 2])}, "`labels` must be an array that `numpy.save` wrote"),
        ({"groups": np.zeros(2, int)}, r"groups\.npy must have the shape \(3,\)"),
        (
            {"test_images": np.zeros((1, 5, 4), np.uint8), "test_labels": np.zeros(1, int)},
            "all parts must be alike",
        ),
    ],
)
def test_what_is_wrong_is_named(given, message, save):
    with pytest.raises(DataError, match=message):
        decode(save(**{**SOUND, **given}))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`images` .*none\.npy"):
        Arrays(images=str(tmp_path / "none.npy"), labels="x").num_train()
    with pytest.raises(ValidationError, match="must be given together"):
        Arrays(images="a", labels="b", test_images="c")
