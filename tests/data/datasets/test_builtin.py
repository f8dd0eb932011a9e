import hashlib
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from helpers.data.files import decode, encode, write_cifar, write_mnist, write_parquet, write_tar
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR10, CIFAR100

from tune_speed import testing
from tune_speed.core.config import descriptions
from tune_speed.core.errors import DataError
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig
from tune_speed.data.cache import prepare
from tune_speed.data.datasets.builtin import Cifar10, Cifar100, Digits
from tune_speed.data.split import SplitConfig, make_splits

KINDS = {CIFAR10: Cifar10, CIFAR100: Cifar100}


def publish(kind: type[CIFAR10], site: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    values = write_cifar(kind, site, monkeypatch)
    with tarfile.open(site / kind.filename, "w:gz") as archive:
        archive.add(site / kind.base_folder, kind.base_folder)
    md5 = hashlib.md5((site / kind.filename).read_bytes()).hexdigest()
    monkeypatch.setattr(kind, "tgz_md5", md5)
    return values


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    (tmp_path / "site").mkdir()
    handler = partial(QuietHandler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path / "site", f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_download_fills_the_folder_and_decodes(kind, site, tmp_path, monkeypatch):
    values = publish(kind, site[0], monkeypatch)
    monkeypatch.setattr(kind, "url", f"{site[1]}/{kind.filename}")
    dataset = KINDS[kind](root=str(tmp_path / "root"))
    data = prepare(dataset, cache_dir=tmp_path / "cache", download=True)
    expected = values.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    assert np.array_equal(data.train.pixels, expected)
    assert data.train.labels.tolist() == [0, 1, 2, 1] * (len(values) // 4)
    assert data.test is not None and len(data.test.labels) == 4
    assert data.class_names == ("cat", "dog", "owl")
    assert all(path.is_file() for path in dataset.sources())


@pytest.mark.parametrize("kind", KINDS.values())
def test_missing_folder_is_named_with_what_to_try(kind: type[Cifar10], tmp_path: Path) -> None:
    dataset = kind(root=str(tmp_path))
    wanted = rf"there is no {dataset.sources()[0].parent}\. Try `--download`"
    for ask in (dataset.num_train, partial(prepare, dataset, cache_dir=tmp_path / "cache")):
        with pytest.raises(DataError, match=wanted):
            ask()


def test_incomplete_folder_is_refused(tmp_path: Path) -> None:
    dataset = Cifar10(root=str(tmp_path))
    dataset.sources()[0].parent.mkdir()
    dataset.sources()[0].write_bytes(b"half")
    with pytest.raises(DataError, match=r"must hold CIFAR10 .* corrupted.* Try `--download`"):
        prepare(dataset, cache_dir=tmp_path / "cache")
    assert dataset.num_train() == 50_000


def test_unreachable_server_is_an_error_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(CIFAR100, "url", "http://127.0.0.1:9/nothing")
    with pytest.raises(DataError, match=r"refused.* Is the server reachable?"):
        prepare(Cifar100(root=str(tmp_path)), cache_dir=tmp_path / "cache", download=True)


def test_digits_are_those_of_scikit_learn_stretched_to_a_byte() -> None:
    pixels, levels = decode(Digits()).train.pixels[..., 0], load_digits().images
    pairs = {(level, round(level * 255 / 16)) for level in range(17)}
    assert set(zip(levels.ravel(), pixels.ravel(), strict=True)) == pairs


def test_scale_repeats_each_pixel() -> None:
    small, large = decode(Digits()).train.pixels, decode(Digits(scale=3)).train.pixels
    assert large.shape == (1797, 24, 24, 1)
    for y, x in ((0, 0), (1, 2), (2, 1)):
        assert np.array_equal(large[:, y::3, x::3], small)


Make = Callable[[Path, pytest.MonkeyPatch], DatasetConfig]


def make_digits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    return DATASETS["digits"]()


def make_cifar(kind: type[CIFAR10], folder: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    num_train = len(write_cifar(kind, folder, monkeypatch))
    monkeypatch.setattr("tune_speed.data.datasets.builtin.NUM_TRAIN", num_train)
    monkeypatch.setattr("tune_speed.data.datasets.builtin.NUM_TEST", 4)
    return KINDS[kind](root=str(folder))


make_cifar10, make_cifar100 = partial(make_cifar, CIFAR10), partial(make_cifar, CIFAR100)


def make_image_parquet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    images = [encode(np.full((4, 4, 3), i, np.uint8)) for i in range(20)]
    train = write_parquet(folder / "a.parquet", images[:12], [0, 1, 2] * 4)
    test = write_parquet(folder / "b.parquet", images[12:], [0, 1] * 4)
    return DATASETS["image_parquet"](train=str(train), test=str(test))


def make_image_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for i in range(10):
            (folder / name / f"{i}.png").write_bytes(encode(np.full((5, 4), 9 * i, np.uint8)))
    return DATASETS["image_folder"](root=str(folder), image_size=4)


def make_csv(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    for i in range(20):
        (folder / f"{i}.png").write_bytes(encode(np.full((5, 4), 9 * i, np.uint8)))
    rows = [f"{i}.png,{'cat' if i % 2 else 'dog'},{'test' if i > 14 else ''}" for i in range(20)]
    (folder / "x.csv").write_text("\n".join(["path,label,split", *rows]))
    return DATASETS["csv"](file=str(folder / "x.csv"))


def make_arrays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    np.save(folder / "images.npy", np.arange(20 * 5 * 4 * 3).astype(np.uint8).reshape(20, 5, 4, 3))
    np.save(folder / "labels.npy", np.arange(20) % 3)
    return DATASETS["arrays"](**{n: str(folder / f"{n}.npy") for n in ("images", "labels")})


def make_tar(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    for part, count in {"train": 12, "test": 4}.items():
        files = {f"{i}.png": encode(np.full((5, 4), 9 * i, np.uint8)) for i in range(count)}
        labels = {f"{i}.cls": f"{i % 2}".encode() for i in range(count)}
        write_tar(folder / f"{part}.tar", files | labels)
    return DATASETS["tar"](train=str(folder / "train.tar"), test=str(folder / "test.tar"))


def make_torchvision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetConfig:
    write_mnist(folder / "KMNIST" / "raw", {"train": 20, "t10k": 10})
    return DATASETS["torchvision"](set="KMNIST", root=str(folder))


MAKERS: dict[str, Make] = {
    name.removeprefix("make_"): make
    for name, make in globals().items()
    if name.removeprefix("make_") in DATASETS
}


@pytest.fixture(params=DATASETS)
def dataset(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DatasetConfig:
    (tmp_path / "source").mkdir()
    return MAKERS[request.param](tmp_path / "source", monkeypatch)


def test_every_set_keeps_the_contracts_of_data_sets(dataset: DatasetConfig) -> None:
    (name,) = (name for name, kind in DATASETS.items() if kind is type(dataset))
    testing.check_dataset(name, type(dataset), fields=dataset.model_dump())


def test_sources_key_the_cache(dataset: DatasetConfig, tmp_path: Path) -> None:
    prepare(dataset, cache_dir=tmp_path / "c")
    (before,) = (path.name for path in (tmp_path / "c").iterdir() if path.is_dir())
    for path in dataset.sources():
        path.touch()
    prepare(dataset, cache_dir=tmp_path / "c")
    (after,) = (path.name for path in (tmp_path / "c").iterdir() if path.is_dir())
    assert (before != after) == bool(dataset.sources())


def test_the_training_part_of_a_small_set_is_a_copy(dataset: DatasetConfig, tmp_path: Path) -> None:
    splits = make_splits(prepare(dataset, cache_dir=tmp_path), SplitConfig(validation_frac=0.25))
    assert splits.train.pixels.flags.writeable  # a copy, that no longer needs the cache


@pytest.mark.parametrize("kind", DATASETS.values())
def test_location_fields_are_fields(kind: type[DatasetConfig]) -> None:
    assert kind.location_fields <= kind.model_fields.keys()
    assert set(descriptions(kind)) == set(kind.model_fields)
