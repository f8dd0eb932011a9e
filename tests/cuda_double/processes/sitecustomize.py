"""Gives every Python process with this folder on PYTHONPATH the GPUs of `cuda_double`.

The command and Ray's workers inherit the variable. They get them when torch is imported.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class _AddGpus(MetaPathFinder):
    """Finds torch as usual, and gives it GPUs once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_add(module: ModuleType) -> None:
            load(module)
            sys.path.append(str(Path(__file__).parents[2]))
            from cuda_double import double

            driver = double.Driver(memory_gib=float(os.environ["CUDA_DOUBLE_GIB"]))
            driver.error = os.environ.get("CUDA_DOUBLE_ERROR")
            double.install(driver)

        spec.loader.exec_module = load_and_add
        return spec


sys.meta_path.insert(0, _AddGpus())
