"""Decoded data sets, cached on disk: each is decoded once per node, however many processes start.

The name of an entry holds the data set's configuration and a fingerprint of its source files, so
that changed files give a new entry; the old one is removed. An entry is written under another name
and then renamed, so that it is whole or not there; what a process that was killed leaves of it, the
next one takes over.

Of a set of many files, the next start looks only at the time of change of each folder, and at some
of the files. Who adds, removes, renames or replaces a file changes its folder; one that is written
over in its place is noticed within a day, or with `--download`.
"""

import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.config import Config, canonical_hash
from tune_speed.core.errors import DataError, StorageError
from tune_speed.core.folders import default_cache_dir
from tune_speed.core.text import printable
from tune_speed.data.base import (
    DatasetConfig,
    DecodedData,
    EncodedData,
    Images,
    OnProgress,
    reading,
)
from tune_speed.data.datasets.decoding import ImageFiles, decode_images
from tune_speed.data.entries import Array, DamagedEntry, read_entry, write_entry
from tune_speed.runtime import heartbeat
from tune_speed.runtime.atomic_file import replace_text
from tune_speed.runtime.file_lock import file_lock

States = dict[Path, tuple[int, int] | None]
"""Size [bytes] and time of change [ns] of each file; None where it is missing."""

# Raise it when the files' layout, or the way in which images are decoded, changes.
FORMAT_VERSION = 4
LOCK_WAIT_S = 60.0
"""Longest wait for a sign of life of another process that prepares the same set."""
BEAT_S = 5.0
"""Between two of them, as long as progress was made within `STUCK_S`."""
STUCK_S = 1800.0
MANY_FILES = 10_000
"""From so many on, not each is looked at again."""
SAMPLED_FILES = 200
MANIFEST_S = 86_400.0
ABANDONED_S = 7 * 86_400.0
"""Age at which what a build left of any set is removed, if it is the same user's."""

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
    notes: tuple[str, ...] = ()
    """What a user should know of how the images were stored."""


class Manifest(Config):
    """Which entry holds a set of many files, and how these were found."""

    entry: str
    checked: float
    """When every file was looked at [s since 1970]."""
    folders: dict[str, int]
    """Time of change [ns] of each folder."""
    files: dict[str, tuple[int, int]]
    """Size [bytes] and time of change [ns] of some files."""


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
    called on a cache hit; `lock_wait_s` [s] bounds the wait for a sign of life of another process
    that prepares it.

    Raises: DataError if the data are missing or unreadable; StorageError if the cache cannot be
        written, or its lock stays taken.
    """
    folder = Path(os.path.abspath((cache_dir or default_cache_dir()).expanduser()))
    if not download and (found := _read_by_manifest(dataset, folder)):
        return found
    states = _states(dataset)
    if found := _read(folder / _entry_name(dataset, states)):
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The cache folder {folder} must be writable, but: {error}. Set TUNE_SPEED_CACHE to a"
            " folder that is."
        ) from error
    lock = folder / f"{_set_name(dataset)}.lock"
    with file_lock(lock, wait_s=lock_wait_s, is_renewed=True), _signs_of_life(lock) as alive:

        def progressed(done: int, total: int) -> None:
            alive()
            if on_progress is not None:
                on_progress(done, total)

        # Another process may have prepared or downloaded it while this one waited.
        if None in states.values() or not states:
            states = _states(dataset)
        found = _read(folder / _entry_name(dataset, states))
        return found or _build(dataset, folder, states, download, progressed)


@contextmanager
def _signs_of_life(lock: Path) -> Iterator[Callable[[], None]]:
    is_over, last = threading.Event(), [time.monotonic()]

    def touch() -> None:
        while not is_over.wait(BEAT_S):
            if time.monotonic() - last[0] < STUCK_S:
                with suppress(OSError):
                    os.utime(lock)

    def alive() -> None:
        heartbeat.beat()
        last[0] = time.monotonic()

    thread = threading.Thread(target=touch, daemon=True)
    thread.start()
    try:
        yield alive
    finally:
        is_over.set()
        thread.join()


def _build(
    dataset: DatasetConfig, folder: Path, states: States, download: bool, on_progress: OnProgress
) -> PreparedData:
    if download and isinstance(dataset, ImageFiles):
        with reading(dataset):
            dataset.fetch()
        states = _states(dataset)
    _remove_abandoned(folder)
    began = time.time()
    folders = _folders(dataset, states)
    with _writing(folder, f"{_set_name(dataset)}.partial") as partial:
        arrays, known = _stored(dataset, partial, download, on_progress)
        states = _unchanged(dataset, states)
        write_entry(partial, arrays, format_version=FORMAT_VERSION, **known)
        for file in partial.glob("*_rows-*"):
            file.unlink()
        entry = folder / _entry_name(dataset, states)
        shutil.rmtree(entry, ignore_errors=True)
        partial.rename(entry)
    for old in folder.glob(f"{_set_name(dataset)}-*"):
        if old != entry:
            # A process that still maps it is not hurt.
            shutil.rmtree(old, ignore_errors=True)
    try:
        data = _prepared(entry)
    except DamagedEntry as error:
        raise StorageError(
            f"{entry} must read back as it was written, but: {error}. Is the disk sound?"
        ) from error
    assert data is not None
    if folders:
        sampled = [*states.items()][:: -(-len(states) // SAMPLED_FILES)]
        files = {str(path): state for path, state in sampled if state is not None}
        manifest = Manifest(entry=entry.name, checked=began, folders=folders, files=files)
        with suppress(StorageError):
            replace_text(folder / f"{_set_name(dataset)}.json", manifest.model_dump_json())
    return data


def _stored(
    dataset: DatasetConfig, partial: Path, download: bool, on_progress: OnProgress
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Returns the arrays of an entry that are not written yet, and what else is known of it."""
    data: DecodedData | EncodedData
    with reading(dataset):
        if isinstance(dataset, ImageFiles):
            data = dataset.listing()
        else:
            data = dataset.decode(download=download, on_progress=on_progress)
    _check(dataset, data)
    if isinstance(data, EncodedData):
        assert isinstance(dataset, ImageFiles)
        arrays, notes = decode_images(data, dataset, partial, on_progress)
    else:
        arrays, notes = _arrays_of(dataset, data), ()
    known = {"class_names": data.class_names, "num_validation": data.num_validation, "notes": notes}
    return arrays if data.groups is None else {**arrays, "groups": data.groups}, known


def _arrays_of(dataset: DatasetConfig, data: DecodedData) -> dict[str, Array]:
    parts = {"train": data.train, **({"test": data.test} if data.test else {})}
    shapes = {images.pixels.shape[1:] for images in parts.values()}
    if len(shapes) > 1:
        raise DataError(
            "Training and test images must be alike, but their height, width and channels are"
            f" {' and '.join(map(str, sorted(shapes)))} in {dataset!r}. Scale all to one size."
        )
    arrays: dict[str, Array] = {}
    for part, images in parts.items():
        assert isinstance(images.pixels, np.ndarray) and len(images.pixels) == len(images.labels)
        arrays |= {f"{part}_pixels": images.pixels, f"{part}_labels": images.labels}
        each = (hashlib.blake2b(one.tobytes(), digest_size=8).digest() for one in images.pixels)
        arrays[f"{part}_digests"] = np.frombuffer(b"".join(each), dtype="<u8")
        if images.sizes is not None:
            arrays[f"{part}_sizes"] = images.sizes
    return arrays


@contextmanager
def _writing(folder: Path, name: str) -> Iterator[Path]:
    """Yields a folder to write an entry in. Raises: StorageError if it takes no more."""
    partial = folder / name
    try:
        partial.mkdir(exist_ok=True)
        yield partial
    except OSError as error:
        raise StorageError(
            f"The cache folder {folder} must take the images as they are stored, but: {error}."
            f" {shutil.disk_usage(folder).free / 2**20:.0f} MiB are free there; free some space, or"
            " set TUNE_SPEED_CACHE to another folder. What is done is kept."
        ) from error
    finally:
        # What does not belong to images that are done would not be taken over.
        if not any(partial.glob("*_rows-*")):
            shutil.rmtree(partial, ignore_errors=True)


def _read(entry: Path) -> PreparedData | None:
    try:
        return _prepared(entry)
    except DamagedEntry as error:
        logger.warning("The cached data set %s is damaged and is decoded again: %s.", entry, error)
        return None


def _prepared(entry: Path) -> PreparedData | None:
    if (found := read_entry(entry)) is None:
        return None
    meta, arrays = found
    train, test = Images.of(arrays, "train"), Images.of(arrays, "test")
    assert train is not None
    brought = (meta.num_validation, arrays.get("groups"))
    digests = tuple(arrays[f"{p}_digests"] for p in ("train", "test") if f"{p}_digests" in arrays)
    return PreparedData(
        train, test, meta.class_names, meta.data_hash, *brought, digests, meta.notes
    )


def _check(dataset: DatasetConfig, data: DecodedData | EncodedData) -> None:
    for labels in (part.labels for part in (data.train, data.test) if part is not None):
        if len(labels) == 0:
            raise DataError(f"Every part of {dataset!r} must hold images, but one has none.")
        assert labels.min() >= 0 and labels.max() < (len(data.class_names), 2)[labels.ndim - 1]
    if len(data.class_names) == 1:
        raise DataError(
            f"{dataset!r} must hold images of two classes or more, but holds one alone,"
            f" `{printable(data.class_names[0])}`: a second was looked for beside and below it."
        )


def _set_name(dataset: DatasetConfig) -> str:
    fields = dataset.model_dump(mode="json")
    places = {f: os.path.realpath(fields[f]) for f in dataset.location_fields if fields.get(f)}
    kind, source = type(dataset).__name__, getattr(type(dataset), "plugin_source", None)
    # Other code may decode the same otherwise.
    theirs = {"plugin": source} if source else {}
    return f"{kind.lower()}-{canonical_hash({'kind': kind, **fields, **places, **theirs})}"


def _entry_name(dataset: DatasetConfig, states: States) -> str:
    files = [[str(path), *(state or ())] for path, state in states.items()]
    return f"{_set_name(dataset)}-{canonical_hash([FORMAT_VERSION, files])}"


def _states(dataset: DatasetConfig) -> States:
    with reading(dataset):
        return {path: _state(path) for path in dataset.sources()}


def _state(path: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    return None


def _unchanged(dataset: DatasetConfig, states: States) -> States:
    """Returns the files' states after they were read. Raises: DataError if they were changed."""
    after = {path: _state(path) for path in states}
    # What is downloaded was missing.
    if after != states and None not in states.values():
        raise DataError(
            f"The files of {dataset!r} must not change while they are read, but they did. Try"
            " again when they are complete."
        )
    return after


def _folders(dataset: DatasetConfig, states: States) -> dict[str, int]:
    if len(states) < MANY_FILES:
        return {}
    with reading(dataset):
        found = {str(path.parent) for path in states}
        for place in (getattr(dataset, field) for field in dataset.location_fields):
            found |= {folder for folder, _, _ in os.walk(place or "")}
        return {folder: os.stat(folder).st_mtime_ns for folder in sorted(found)}


def _read_by_manifest(dataset: DatasetConfig, folder: Path) -> PreparedData | None:
    try:
        text = (folder / f"{_set_name(dataset)}.json").read_bytes()
        manifest = Manifest.model_validate_json(text)
        is_same = all(os.stat(at).st_mtime_ns == ns for at, ns in manifest.folders.items())
        is_same &= all(_state(Path(at)) == state for at, state in manifest.files.items())
    except (OSError, ValueError):
        return None
    is_new = 0 <= time.time() - manifest.checked < MANIFEST_S
    return _read(folder / manifest.entry) if is_same and is_new else None


def _remove_abandoned(folder: Path) -> None:
    for pattern in ("*.partial", "*.tmp-*"):
        for path in folder.glob(pattern):
            with suppress(OSError):
                status = path.stat()
                is_old = time.time() - status.st_mtime > ABANDONED_S
                if is_old and status.st_uid == os.getuid():
                    shutil.rmtree(path)
