"""Writes small image files and Parquet files, and a small set of photos."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


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


def write_photos(folder: Path) -> Path:
    """Writes 160 images of 8 pixels in two classes, dark and bright, 100 and 60 of them."""
    noise = np.random.default_rng(0)
    for number in range(160):
        bright = number % 8 < 3
        pixels = noise.integers(0, 100, (8, 8, 3), dtype=np.uint8) + np.uint8(150 * bright)
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
