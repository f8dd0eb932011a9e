"""Relative paths in a study file start at its folder, wherever the command runs.

Those of `--set` and of a call start at the current folder, and so do those of shipped files, whose
folder is no place for data.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tune_speed.data import DATASETS
from tune_speed.study.parameter import is_leaf
from tune_speed.study.yaml import Source, TreePath

WEIGHTS = "weights_file"


def with_locations(source: Source, *, shipped: Path) -> Source:
    """Returns a file's `source` with absolute paths; `shipped` is the folder of shipped files."""
    # A pipe, such as `<(...)`, and a name in a message are no files with a folder.
    if source.file is None or not os.path.isfile(source.file):
        return source
    folder = Path(source.file).resolve().parent
    folder = Path.cwd() if folder.is_relative_to(shipped.resolve()) else folder
    for path, value in _locations(source.tree, ()):
        source = source.with_value(path, _joined(folder, value))
    return source


def _locations(tree: Any, path: TreePath) -> Iterator[tuple[TreePath, Any]]:
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        if key == WEIGHTS:
            yield (*path, key), value
        elif key == "warm_start" and isinstance(value, list):
            files = [
                (i, each.get("file")) for i, each in enumerate(value) if isinstance(each, Mapping)
            ]
            local = [(i, file) for i, file in files if "://" not in str(file)]
            yield from (((*path, key, i, "file"), file) for i, file in local)
        elif key == "dataset" and isinstance(value, Mapping):
            kind = DATASETS.get(str(value.get("name")))
            fields = kind.location_fields if kind is not None else frozenset()
            yield from (((*path, key, name), value[name]) for name in fields & value.keys())
        else:
            yield from _locations(value, (*path, key))


def _joined(folder: Path, value: Any) -> Any:
    """Returns a path, or the choices of a searched one, from `folder`; all else as it is."""
    if isinstance(value, str):
        return os.path.abspath(folder / value)
    if is_leaf(value) and isinstance(choices := value.get("choices"), list):
        return {**value, "choices": [_joined(folder, choice) for choice in choices]}
    return value
