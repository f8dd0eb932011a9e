"""One decoded data set on disk: a folder of `.npy` files, described and checked by `meta.json`.

A folder is written under another name and then renamed, so that it is whole or not there.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tune_speed.core.config import Config, canonical_hash
from tune_speed.core.errors import StorageError
from tune_speed.data.base import DecodedData, Images

Array = NDArray[Any]

# Raise it when the files' layout, or the way in which images are decoded, changes.
FORMAT_VERSION = 1
ALWAYS_CHECKED_BYTES = 16 * 2**20
META_FILE = "meta.json"


class PreparedData(NamedTuple):
    """A data set whose pixels are mapped into memory from the cache, read-only."""

    train: Images
    test: Images | None
    class_names: tuple[str, ...]
    data_hash: str
    """16 hex digits over every pixel, label and class name."""


class ArrayMeta(Config):
    """What is known of one array file."""

    size_bytes: int
    modified_ns: int
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    """Over the array's content in C order."""


class EntryMeta(Config):
    """The text of `meta.json`."""

    format_version: int
    class_names: tuple[str, ...]
    arrays: dict[str, ArrayMeta]
    data_hash: str


class DamagedEntry(Exception):
    """An entry is there, but not as it was written."""


def read_entry(folder: Path) -> PreparedData | None:
    """Returns the data of the entry; None if there is none.

    Raises: DamagedEntry if something in it is missing or was changed.
    """
    if not folder.is_dir():
        return None
    try:
        meta = EntryMeta.model_validate_json((folder / META_FILE).read_bytes())
        arrays = {name: _read_array(folder, name, array) for name, array in meta.arrays.items()}
    except (OSError, ValidationError, ValueError) as error:
        raise DamagedEntry(f"{error}") from error
    if meta.data_hash != _data_hash(meta.class_names, meta.arrays) or "train_pixels" not in arrays:
        raise DamagedEntry(f"{META_FILE} does not match its own checksum")
    parts = {
        part: Images(arrays[f"{part}_pixels"], arrays[f"{part}_labels"])
        for part in ("train", "test")
        if f"{part}_pixels" in arrays
    }
    return PreparedData(parts["train"], parts.get("test"), meta.class_names, meta.data_hash)


def write_entry(folder: Path, data: DecodedData) -> None:
    """Writes `data` to `folder` in one step; what was there is removed.

    Raises: StorageError if the disk is full, or the folder cannot be written.
    """
    temporary: Path | None = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
        _write_files(temporary, data)
        # The mode of mkdtemp lets nobody else in; the umask does not apply to it.
        temporary.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        needed = sum(array.nbytes for array in _named_arrays(data).values())
        raise StorageError(
            f"The cache folder {folder.parent} must take {needed / 2**20:.0f} MiB, but: {error}."
            " Free some space there, or set TUNE_SPEED_CACHE to another folder."
        ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _named_arrays(data: DecodedData) -> dict[str, Array]:
    parts = {"train": data.train, "test": data.test}
    return {
        f"{part}_{field}": array
        for part, images in parts.items()
        if images is not None
        for field, array in images._asdict().items()
    }


def _write_files(folder: Path, data: DecodedData) -> None:
    arrays = {name: _write_array(folder, name, a) for name, a in _named_arrays(data).items()}
    meta = EntryMeta(
        format_version=FORMAT_VERSION,
        class_names=data.class_names,
        arrays=arrays,
        data_hash=_data_hash(data.class_names, arrays),
    )
    with (folder / META_FILE).open("w") as file:
        file.write(meta.model_dump_json(indent=2))
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)


def _write_array(folder: Path, name: str, array: Array) -> ArrayMeta:
    array = np.ascontiguousarray(array)
    with (folder / f"{name}.npy").open("wb") as file:
        # Not through a memory map: on a full disk that would kill the process with SIGBUS.
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
        status = os.fstat(file.fileno())
    return ArrayMeta(
        size_bytes=status.st_size,
        modified_ns=status.st_mtime_ns,
        dtype=array.dtype.str,
        shape=array.shape,
        sha256=_sha256(array),
    )


def _read_array(folder: Path, name: str, meta: ArrayMeta) -> Array:
    path = folder / f"{name}.npy"
    status = path.stat()
    if status.st_size != meta.size_bytes:
        raise DamagedEntry(f"{path.name} has {status.st_size} bytes, not {meta.size_bytes}")
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if (array.dtype.str, array.shape) != (meta.dtype, meta.shape):
        raise DamagedEntry(f"{path.name} has another type or shape")
    # The checksum of a small array takes under 20 ms. That of a large one is taken only if its file
    # was changed after it was written: damage through the file system leaves a new time of change.
    is_suspect = status.st_mtime_ns != meta.modified_ns or array.nbytes <= ALWAYS_CHECKED_BYTES
    if is_suspect and _sha256(array) != meta.sha256:
        raise DamagedEntry(f"{path.name} does not match its checksum")
    return np.asarray(array)


def _sha256(array: Array) -> str:
    return hashlib.sha256(array.data).hexdigest()


def _data_hash(class_names: tuple[str, ...], arrays: dict[str, ArrayMeta]) -> str:
    contents = {name: [meta.dtype, list(meta.shape), meta.sha256] for name, meta in arrays.items()}
    return canonical_hash({"class_names": list(class_names), "arrays": contents})


def _sync(folder: Path) -> None:
    # Without it names in the folder may not survive a power cut.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
