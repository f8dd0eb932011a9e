"""Gives every Python process with this folder on PYTHONPATH one more model: `faulty`.

With $FAULTS_CLOCK its time of day is wrong, too; $FAULTS_DELIVERY_S is how long a search waits for
MLflow at its end.

The command, its check of networks and Ray's workers inherit the variable, so a study file can name
the model like any other. It is added when `tune_speed.components.models` is imported, not before.
"""

import os
import sys
from pathlib import Path
from types import ModuleType

sys.path.append(str(Path(__file__).parents[2] / "helpers"))

from after_import import after_import


def _add_faulty(models: ModuleType) -> None:
    from faulty_model import Faulty

    models.MODELS["faulty"] = Faulty


def _deliver_for(tracker: ModuleType) -> None:
    tracker.DELIVERY_S = float(os.environ["FAULTS_DELIVERY_S"])  # type: ignore[attr-defined]


after_import("tune_speed.components.models", _add_faulty)
if "FAULTS_DELIVERY_S" in os.environ:
    after_import("tune_speed.tracking.writer.tracker", _deliver_for)
if "FAULTS_CLOCK" in os.environ:
    import wrong_clock

    wrong_clock.install()
