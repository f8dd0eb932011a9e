"""Gives every Python process with this folder on PYTHONPATH one more model: `faulty`.

With $FAULTS_CLOCK its time of day is wrong, too; $FAULTS_LIMITS replaces limits of time, see
`faulty_runs.limits`.

The command, its check of networks and Ray's workers inherit the variable, so a study file can name
the model like any other. It is added when `tune_speed.components.models` is imported, not before.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType

sys.path.append(str(Path(__file__).parents[2]))

from helpers.after_import import after_import


def _add_faulty(models: ModuleType) -> None:
    from faulty_model import Faulty

    models.MODELS["faulty"] = Faulty


def _take_any_image(precheck: ModuleType) -> None:
    """Saves the process that tries a search's networks: `faulty` takes any image."""
    precheck.TAKES_ANYTHING.add("faulty")


def _set_limit(name: str, limit_s: float) -> None:
    module, _, constant = name.rpartition(".")

    def change(imported: ModuleType) -> None:
        assert hasattr(imported, constant), name
        setattr(imported, constant, limit_s)

    after_import(module, change)


after_import("tune_speed.components.models", _add_faulty)
after_import("tune_speed.tuning.precheck", _take_any_image)
for name, limit_s in json.loads(os.environ.get("FAULTS_LIMITS", "{}")).items():
    _set_limit(name, limit_s)
if "FAULTS_CLOCK" in os.environ:
    import wrong_clock

    wrong_clock.install()
