"""Files of small data sets, and of published weights, as other programs write them."""

import hashlib
import pickle
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

    from tune_speed.data.base import DatasetConfig, DecodedData


def decode(dataset: "DatasetConfig") -> "DecodedData":
    return dataset.decode(download=False, on_progress=lambda *_: None)


def encode(pixels: np.ndarray, mode: str | None = None, kind: str = "png") -> bytes:
    """Returns (H, W, 3) or (H, W) pixels as the bytes of an image file, lossless for PNG."""
    image, buffer = Image.fromarray(pixels), BytesIO()
    (image.convert(mode) if mode else image).save(buffer, kind)
    return buffer.getvalue()


def write_parquet(
    path: Path,
    images: Sequence[bytes | None],
    labels: Sequence[Any],
    *,
    names: Sequence[str] | None = None,
    label_type: pa.DataType | None = None,
    as_struct: bool = True,
) -> Path:
    """Writes a file in the layout of the Hugging Face hub, with a column that nobody reads."""
    values = [{"bytes": image, "path": None} for image in images] if as_struct else list(images)
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()}) if as_struct else pa.binary()
    columns = {
        "img": pa.array(values, kind),
        "label": pa.array(labels, label_type or pa.int64()),
        "note": pa.array(["x"] * len(labels)),
    }
    table = pa.table(columns)
    if names is not None:
        features = f'{{"label": {{"names": {list(names)}}}}}'.replace("'", '"')
        table = table.replace_schema_metadata(
            {"huggingface": f'{{"info": {{"features": {features}}}}}'}
        )
    pq.write_table(table, path, row_group_size=3)
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    return path


def write_mnist(folder: Path, counts: dict[str, int]) -> dict[str, np.ndarray]:
    """Writes files of MNIST's format (IDX), labels from 0 to 9 in turns; returns the pixels."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    pixels = {part: noise.integers(0, 256, (n, 28, 28), np.uint8) for part, n in counts.items()}
    for part, images in pixels.items():
        count = len(images)
        head, labels = (
            np.array([0x803, count, 28, 28], ">u4"),
            np.arange(count, dtype=np.uint8) % 10,
        )
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head.tobytes() + images.tobytes())
        head = np.array([0x801, count], ">u4")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head.tobytes() + labels.tobytes())
    return pixels


def write_photos(folder: Path, *, size: int = 8, count: int = 160) -> Path:
    """Writes images in two classes, dark and bright, five to three."""
    noise = np.random.default_rng(0)
    for number in range(count):
        bright = number % 8 < 3
        pixels = noise.integers(0, 100, (size, size, 3), dtype=np.uint8) + np.uint8(150 * bright)
        path = folder / ("bright" if bright else "dark") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels))
    return folder


def write_noise(folder: Path, parts: dict[str, int], *, size: int) -> Path:
    """Writes so many images of noise for each part, in two classes by turns."""
    noise = np.random.default_rng(0)
    for part, count in parts.items():
        for number in range(count):
            path = folder / part / f"class {number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(noise.integers(0, 256, (size, size, 3), dtype=np.uint8)))
    return folder


# --- Small sets in torchvision's CIFAR format


def write_cifar(kind: "type[CIFAR10]", root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Writes a small set in torchvision's format, 4 images a file; returns the training pixels."""
    rng = np.random.default_rng(5)
    label_key = "fine_labels" if kind.__name__ == "CIFAR100" else "labels"
    files: dict[str, dict[str, Any]] = {
        name: {"data": rng.integers(0, 256, (4, 3072), dtype=np.uint8), label_key: [0, 1, 2, 1]}
        for name, _ in kind.train_list + kind.test_list
    }
    files[kind.meta["filename"]] = {kind.meta["key"]: ["cat", "dog", "owl"]}
    md5 = {}
    (root / kind.base_folder).mkdir(parents=True)
    for name, content in files.items():
        (root / kind.base_folder / name).write_bytes(pickle.dumps(content))
        md5[name] = hashlib.md5(pickle.dumps(content)).hexdigest()
    for part in ("train_list", "test_list"):
        monkeypatch.setattr(kind, part, [[name, md5[name]] for name, _ in getattr(kind, part)])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5[kind.meta["filename"]]})
    return np.concatenate([files[name]["data"] for name, _ in kind.train_list])


# --- A cache of published weights, in which tests put what a hub would give

REVISION = "0" * 40


def go_offline(monkeypatch, folder):
    """Lets timm find published weights in `folder` alone."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))


def publish(network, folder, *, name):
    """Puts a network's weights in `folder` as those of timm's `name`, which has its tag."""
    from safetensors.torch import save_file

    repository = folder / f"models--timm--{name}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(REVISION)
    (repository / "snapshots" / REVISION).mkdir(parents=True)
    save_file(network.state_dict(), repository / "snapshots" / REVISION / "model.safetensors")
