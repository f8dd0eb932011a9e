import hashlib
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from cifar_files import write_cifar
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR10, CIFAR100

from tune_speed.core.errors import DataError
from tune_speed.data.cache import prepare
from tune_speed.data.datasets.builtin import Cifar10, Cifar100, Digits

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
    with pytest.raises(DataError, match=wanted):
        dataset.num_train()
    with pytest.raises(DataError, match=wanted):
        prepare(dataset, cache_dir=tmp_path / "cache")


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


def decode(scale: int) -> np.ndarray:
    return Digits(scale=scale).decode(download=False, on_progress=lambda *_: None).train.pixels


def test_digits_are_those_of_scikit_learn_stretched_to_a_byte() -> None:
    pixels, levels = decode(scale=1)[..., 0], load_digits().images
    assert set(zip(levels.ravel(), pixels.ravel(), strict=True)) == {
        (level, round(level * 255 / 16)) for level in range(17)
    }


def test_scale_repeats_each_pixel() -> None:
    small, large = decode(scale=1), decode(scale=3)
    assert large.shape == (1797, 24, 24, 1)
    for y, x in ((0, 0), (1, 2), (2, 1)):
        assert np.array_equal(large[:, y::3, x::3], small)
