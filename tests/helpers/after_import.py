"""Changes a module in processes that a test starts, as soon as it is imported there.

For files `sitecustomize.py`, which Python runs at its start where their folder is on PYTHONPATH.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _Changing(MetaPathFinder):
    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name, self._change = name, change

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            self._change(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Has `change` called with the module `name` once it is loaded; it is found as usual."""
    sys.meta_path.insert(0, _Changing(name, change))
