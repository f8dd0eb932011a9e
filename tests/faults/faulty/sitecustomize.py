"""Gives every Python process with this folder on PYTHONPATH one more model: `faulty`.

With $FAULTS_CLOCK its time of day is wrong, too.

The command, its check of networks and Ray's workers inherit the variable, so a study file can name
the model like any other. It is added when `tune_speed.components.models` is imported, not before.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

PACKAGE = "tune_speed.components.models"


class _AddFaulty(MetaPathFinder):
    """Finds the package of models as usual, and adds to it once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_add(module: ModuleType) -> None:
            load(module)
            from faulty_model import Faulty

            module.MODELS["faulty"] = Faulty

        spec.loader.exec_module = load_and_add  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AddFaulty())
if "FAULTS_CLOCK" in os.environ:
    import wrong_clock

    wrong_clock.install()
