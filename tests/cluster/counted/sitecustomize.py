"""Python with this folder on PYTHONPATH notes in the file DECODES that it decodes a data set."""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Count(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tune_speed.data.cache" or "DECODES" not in os.environ:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_count(module: ModuleType) -> None:
            load(module)
            build = module._build

            def counted(*arguments: Any) -> Any:
                with open(os.environ["DECODES"], "a") as file:
                    file.write(f"{os.getpid()}\n")
                return build(*arguments)

            module._build = counted  # type: ignore[attr-defined]

        spec.loader.exec_module = load_and_count  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Count())
