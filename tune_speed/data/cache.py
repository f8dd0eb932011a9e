"""Decoded data sets, cached on disk: each is decoded once per node, however many processes start.

The name of an entry holds the data set's configuration and a fingerprint of its source files, so
that changed files give a new entry; the old one is removed.
"""

import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

from tune_speed.core.config import canonical_hash
from tune_speed.core.errors import DataError, StorageError
from tune_speed.core.folders import default_cache_dir
from tune_speed.data.base import DatasetConfig, DecodedData, OnProgress, reading
from tune_speed.data.cache_entry import (
    FORMAT_VERSION,
    DamagedEntry,
    PreparedData,
    read_entry,
    write_entry,
)
from tune_speed.runtime import heartbeat
from tune_speed.runtime.file_lock import file_lock

__all__ = ["PreparedData", "prepare"]

# Longest wait for another process that prepares the same set; a million images take less.
LOCK_WAIT_S = 1800.0

logger = logging.getLogger(__name__)


def prepare(
    dataset: DatasetConfig,
    *,
    cache_dir: Path | None = None,
    download: bool = False,
    on_progress: OnProgress | None = None,
    lock_wait_s: float = LOCK_WAIT_S,
) -> PreparedData:
    """Returns the decoded data set from the cache, after decoding it if it is not there yet.

    Args:
        dataset: What to prepare.
        cache_dir: Folder of the entries; None: `default_cache_dir()`.
        download: Fetch missing data, where the data set knows from where.
        on_progress: Progress callback; not called on a cache hit.
        lock_wait_s: Longest wait for another process that prepares the same set [s].

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
    """Refuses what no training could use, whatever the kind of data set."""
    for images in filter(None, (decoded.train, decoded.test)):
        if len(images.labels) == 0:
            raise DataError(f"Every part of {dataset!r} must hold images, but one has none.")
        assert len(images.pixels.shape) == 4 and len(images.pixels) == len(images.labels)
        assert images.labels.min() >= 0 and images.labels.max() < len(decoded.class_names)
    if decoded.test and decoded.test.pixels.shape[1:] != decoded.train.pixels.shape[1:]:
        raise DataError(
            "Training and test images must be alike, but their height, width and channels are"
            f" {decoded.train.pixels.shape[1:]} and {decoded.test.pixels.shape[1:]} in {dataset!r}."
            " Try to set `image_size`."
        )


def _set_name(dataset: DatasetConfig) -> str:
    """Returns a name that differs for every configuration and place of data."""
    fields = dataset.model_dump(mode="json")
    places = {f: os.path.realpath(fields[f]) for f in dataset.location_fields if fields[f]}
    kind, source = type(dataset).__name__, getattr(type(dataset), "plugin_source", None)
    # Other code may decode the same otherwise.
    theirs = {"plugin": source} if source else {}
    return f"{kind.lower()}-{canonical_hash({'kind': kind, **fields, **places, **theirs})}"


def _entry_name(dataset: DatasetConfig) -> str:
    """Returns the set's name with a fingerprint of its files."""
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
