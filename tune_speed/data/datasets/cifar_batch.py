"""CIFAR's files: pickles, of which nothing is run that is not needed to make an array.

A file is read once, and what was checked is what is unpickled: nobody can exchange it in between.
"""

import hashlib
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tune_speed.core.errors import DataError

_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
"""All that the published files name: an array of bytes. Lists and texts need no name."""


def read_batch(path: Path, *, md5: str) -> Mapping[str, Any]:
    """Returns the fields of a published file.

    Args:
        path: the file.
        md5: of the published one.

    Raises:
        DataError: The file is missing, is another one, or names what no such file needs.
        OSError: It cannot be read.
    """
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise DataError(f"{path.name} is missing or corrupted")
    try:
        fields = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # Bytes that are no pickle make almost any error.
        raise DataError(f"{path.name} is no file of CIFAR: {error}") from error
    if not isinstance(fields, dict):
        raise DataError(f"{path.name} is no file of CIFAR: it holds a {type(fields).__name__}")
    return fields


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Returns one of the few names that are allowed. Raises: UnpicklingError."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module[:80]}.{name[:80]}")
        return _ALLOWED[module, name]
