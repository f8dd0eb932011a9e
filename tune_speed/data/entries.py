"""The folder of a decoded data set: `.npy` files, described and checked by `meta.json`."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.config import Config, canonical_hash
from tune_speed.runtime.atomic_file import write_atomically

Array = NDArray[Any]

ALWAYS_CHECKED_BYTES = 16 * 2**20
META_FILE = "meta.json"


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
    data_hash: str = ""
    """16 hex digits over every pixel, label and class name."""
    notes: tuple[str, ...] = ()


class DamagedEntry(Exception):
    """An entry is there, but not as it was written."""


def write_entry(folder: Path, arrays: Mapping[str, Array], **known: Any) -> None:
    """Adds `arrays` to the files of `folder`, and the description of all, with what is `known`.

    Raises: OSError.
    """
    for name, array in arrays.items():
        with (folder / f"{name}.npy").open("wb") as file:
            # Not through a memory map: on a full disk that would kill the process with SIGBUS.
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
    written = sorted(path for path in folder.glob("*.npy") if "_rows-" not in path.name)
    meta = EntryMeta(arrays={path.stem: _array_meta(path) for path in written}, **known)
    meta = meta.model_copy(update={"data_hash": _data_hash(meta)})
    with write_atomically(folder / META_FILE, durable=True) as file:
        file.write(meta.model_dump_json(indent=2).encode())


def read_entry(folder: Path) -> tuple[EntryMeta, dict[str, Array]] | None:
    """Returns an entry, its arrays mapped; None without one. Raises: DamagedEntry."""
    if not folder.is_dir():
        return None
    try:
        meta = EntryMeta.model_validate_json((folder / META_FILE).read_bytes())
        arrays = {name: _read_array(folder, name, array) for name, array in meta.arrays.items()}
    except (OSError, ValueError) as error:
        raise DamagedEntry(f"{error}") from error
    if meta.data_hash != _data_hash(meta) or "train_labels" not in arrays:
        raise DamagedEntry(f"{META_FILE} does not match its own checksum")
    return meta, arrays


def _array_meta(path: Path) -> ArrayMeta:
    # Read, not mapped: mapped pages would count as memory of this process.
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        status = os.fstat(file.fileno())
    times = {"size_bytes": status.st_size, "modified_ns": status.st_mtime_ns}
    return ArrayMeta(dtype=dtype.str, shape=shape, sha256=sha256, **times)


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
    if is_suspect and hashlib.sha256(array.data).hexdigest() != meta.sha256:
        raise DamagedEntry(f"{path.name} does not match its checksum")
    return np.asarray(array)


def _data_hash(meta: EntryMeta) -> str:
    # Digests follow from pixels, and what older versions hashed stays as it was.
    arrays = {name: a for name, a in meta.arrays.items() if not name.endswith("_digests")}
    contents = {name: [a.dtype, list(a.shape), a.sha256] for name, a in arrays.items()}
    more = {"num_validation": meta.num_validation} if meta.num_validation else {}
    return canonical_hash({"class_names": list(meta.class_names), "arrays": contents, **more})
