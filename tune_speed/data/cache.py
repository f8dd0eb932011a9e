"""Decoded data sets, cached on disk: each is decoded once per node, however many processes start.

The name of an entry holds the data set's configuration and a fingerprint of its source files, so
that changed files give a new entry; the old one is removed. An entry is a folder of `.npy` files,
described and checked by `meta.json`. It is written under another name and then renamed, so that it
is whole or not there.
"""

import hashlib
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tune_speed.core.config import Config, canonical_hash
from tune_speed.core.errors import DataError, StorageError
from tune_speed.core.folders import default_cache_dir
from tune_speed.core.text import printable
from tune_speed.data.base import DatasetConfig, DecodedData, Images, OnProgress, reading
from tune_speed.runtime import heartbeat
from tune_speed.runtime.file_lock import file_lock

Array = NDArray[Any]

# Raise it when the files' layout, or the way in which images are decoded, changes.
FORMAT_VERSION = 2
ALWAYS_CHECKED_BYTES = 16 * 2**20
META_FILE = "meta.json"


# Longest wait for another process that prepares the same set; a million images take less.
LOCK_WAIT_S = 1800.0

logger = logging.getLogger(__name__)


class PreparedData(NamedTuple):
    """A data set whose pixels are mapped into memory from the cache, read-only."""

    train: Images
    test: Images | None
    class_names: tuple[str, ...]
    data_hash: str
    """16 hex digits over every pixel, label and class name."""
    num_validation: int = 0
    """How many of the training images, the last ones, are the validation part; 0: none brought."""
    groups: NDArray[np.int64] | None = None
    """As of `DecodedData`."""
    digests: tuple[Array, ...] = ()
    """A number for each image of the training and the test part: equal pixels have equal ones."""


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
    num_validation: int = 0
    arrays: dict[str, ArrayMeta]
    data_hash: str


class DamagedEntry(Exception):
    """An entry is there, but not as it was written."""


def prepare(
    dataset: DatasetConfig,
    *,
    cache_dir: Path | None = None,
    download: bool = False,
    on_progress: OnProgress | None = None,
    lock_wait_s: float = LOCK_WAIT_S,
) -> PreparedData:
    """Returns the decoded data set from the cache, after decoding it if it is not there yet.

    `download` fetches missing data, where the data set knows from where; `on_progress` is not
    called on a cache hit; `lock_wait_s` [s] bounds the wait for another process that prepares it.

    Raises: DataError if the data are missing or unreadable; StorageError if the cache cannot be
        written, or its lock stays taken.
    """
    folder = Path(os.path.abspath((cache_dir or default_cache_dir()).expanduser()))
    found = _read(folder / _entry_name(dataset))
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The cache folder {folder} must be writable, but: {error}. Set TUNE_SPEED_CACHE to a"
            " folder that is."
        ) from error
    with file_lock(folder / f"{_set_name(dataset)}.lock", wait_s=lock_wait_s):
        # Another process may have prepared it while this one waited.
        found = _read(folder / _entry_name(dataset))
        return found or _build(dataset, folder, download, on_progress or (lambda done, total: None))


def _build(
    dataset: DatasetConfig, folder: Path, download: bool, on_progress: OnProgress
) -> PreparedData:
    """Decodes the set and returns it as read back from the cache; the caller holds the lock."""
    # Left by a process that was killed while it prepared the set.
    _remove(folder, f"{_set_name(dataset)}-*.tmp-*")
    were_present = all(path.exists() for path in dataset.sources())
    before = _entry_name(dataset)

    def progressed(done: int, total: int) -> None:
        heartbeat.beat()
        on_progress(done, total)

    with reading(dataset):
        decoded = dataset.decode(download=download, on_progress=progressed)
    name = _entry_name(dataset)
    if were_present and name != before:
        raise DataError(
            f"The files of {dataset!r} must not change while they are read, but they did. Try again"
            " when they are complete."
        )
    _check(dataset, decoded)
    write_entry(folder / name, decoded)
    _remove(folder, f"{_set_name(dataset)}-*", keep=name)
    try:
        data = read_entry(folder / name)
    except DamagedEntry as error:
        raise StorageError(
            f"{folder / name} must read back as it was written, but: {error}. Is the disk sound?"
        ) from error
    assert data is not None
    return data


def _read(entry: Path) -> PreparedData | None:
    try:
        return read_entry(entry)
    except DamagedEntry as error:
        logger.warning("The cached data set %s is damaged and is decoded again: %s.", entry, error)
        return None


def _check(dataset: DatasetConfig, decoded: DecodedData) -> None:
    for images in filter(None, (decoded.train, decoded.test)):
        if len(images.labels) == 0:
            raise DataError(f"Every part of {dataset!r} must hold images, but one has none.")
        assert len(images.pixels.shape) == 4 and len(images.pixels) == len(images.labels)
        limits = (len(decoded.class_names), 2)
        assert images.labels.min() >= 0 and images.labels.max() < limits[images.labels.ndim - 1]
    if decoded.test and decoded.test.pixels.shape[1:] != decoded.train.pixels.shape[1:]:
        raise DataError(
            "Training and test images must be alike, but their height, width and channels are"
            f" {decoded.train.pixels.shape[1:]} and {decoded.test.pixels.shape[1:]} in {dataset!r}."
            " Try to set `image_size`."
        )
    if len(decoded.class_names) == 1:
        raise DataError(
            f"{dataset!r} must hold images of two classes or more, but holds one alone,"
            f" `{printable(decoded.class_names[0])}`: a second was looked for beside and below it."
        )


def _set_name(dataset: DatasetConfig) -> str:
    fields = dataset.model_dump(mode="json")
    places = {f: os.path.realpath(fields[f]) for f in dataset.location_fields if fields.get(f)}
    kind, source = type(dataset).__name__, getattr(type(dataset), "plugin_source", None)
    # Other code may decode the same otherwise.
    theirs = {"plugin": source} if source else {}
    return f"{kind.lower()}-{canonical_hash({'kind': kind, **fields, **places, **theirs})}"


def _entry_name(dataset: DatasetConfig) -> str:
    states: list[list[str | int]] = []
    with reading(dataset):
        for path in dataset.sources():
            states.append([str(path)])
            with suppress(FileNotFoundError):
                status = path.stat()
                states[-1] += [status.st_size, status.st_mtime_ns]
    return f"{_set_name(dataset)}-{canonical_hash([FORMAT_VERSION, states])}"


def _remove(folder: Path, pattern: str, *, keep: str = "") -> None:
    # A process that still maps a removed entry is not hurt.
    for entry in folder.glob(pattern):
        if entry.name != keep:
            shutil.rmtree(entry, ignore_errors=True)


def read_entry(folder: Path) -> PreparedData | None:
    """Returns the data of the entry; None without one. Raises: DamagedEntry if it was changed."""
    if not folder.is_dir():
        return None
    try:
        meta = EntryMeta.model_validate_json((folder / META_FILE).read_bytes())
        arrays = {name: _read_array(folder, name, array) for name, array in meta.arrays.items()}
    except (OSError, ValidationError, ValueError) as error:
        raise DamagedEntry(f"{error}") from error
    if meta.data_hash != _data_hash(meta) or "train_pixels" not in arrays:
        raise DamagedEntry(f"{META_FILE} does not match its own checksum")
    parts = {
        part: Images(arrays[f"{part}_pixels"], arrays[f"{part}_labels"])
        for part in ("train", "test")
        if f"{part}_pixels" in arrays
    }
    digests = tuple(arrays[f"{part}_digests"] for part in parts)
    known = (meta.class_names, meta.data_hash, meta.num_validation)
    return PreparedData(parts["train"], parts.get("test"), *known, digests=digests)


def write_entry(folder: Path, data: DecodedData) -> None:
    """Writes `folder` in one step, in the place of what was there. Raises: StorageError."""
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
        for field, array in [
            ("pixels", np.asarray(images.pixels)),
            ("labels", images.labels),
            ("digests", _digests(images.pixels)),
        ]
    }


def _digests(pixels: Any) -> Array:
    each = (hashlib.blake2b(one.tobytes(), digest_size=8).digest() for one in pixels)
    return np.frombuffer(b"".join(each), dtype="<u8")


def _write_files(folder: Path, data: DecodedData) -> None:
    arrays = {name: _write_array(folder, name, a) for name, a in _named_arrays(data).items()}
    meta = EntryMeta(
        format_version=FORMAT_VERSION,
        class_names=data.class_names,
        num_validation=data.num_validation,
        arrays=arrays,
        data_hash="",
    )
    meta = meta.model_copy(update={"data_hash": _data_hash(meta)})
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


def _data_hash(meta: EntryMeta) -> str:
    # Digests follow from pixels, and what older versions hashed stays as it was.
    arrays = {name: a for name, a in meta.arrays.items() if not name.endswith("_digests")}
    contents = {name: [a.dtype, list(a.shape), a.sha256] for name, a in arrays.items()}
    more = {"num_validation": meta.num_validation} if meta.num_validation else {}
    return canonical_hash({"class_names": list(meta.class_names), "arrays": contents, **more})


def _sync(folder: Path) -> None:
    # Without it names in the folder may not survive a power cut.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
