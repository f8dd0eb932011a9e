"""What a recipe names: models, optimizers, schedules, speed-ups and metrics, and plugins.

Authors of plugins import all that they need from here: the base of each kind of entry, the types
in the signatures of its methods, `Config` for nested fields, and `Problem` for `refusals`:

```python
from tune_speed.components import ModelConfig, OptimizerConfig
```
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.components.metrics.base import Metric
    from tune_speed.components.models.base import ModelConfig
    from tune_speed.components.optim.base import OptimizerConfig
    from tune_speed.components.schedules.base import Factors, ScheduleConfig
    from tune_speed.components.speedups.base import (
        Averager,
        RecipeView,
        Shape,
        Slot,
        SpeedupConfig,
        Start,
    )
    from tune_speed.core.config import Config
    from tune_speed.core.errors import Problem
    from tune_speed.data.base import DatasetConfig, DecodedData, Images, OnProgress

__all__ = [
    "Averager",
    "Config",
    "DatasetConfig",
    "DecodedData",
    "Factors",
    "Images",
    "Metric",
    "ModelConfig",
    "OnProgress",
    "OptimizerConfig",
    "Problem",
    "RecipeView",
    "ScheduleConfig",
    "Shape",
    "Slot",
    "SpeedupConfig",
    "Start",
]

# Lazily: each sub-package imports this one first.
_MODULES = {
    "tune_speed.components.metrics.base": ("Metric",),
    "tune_speed.components.models.base": ("ModelConfig",),
    "tune_speed.components.optim.base": ("OptimizerConfig",),
    "tune_speed.components.schedules.base": ("Factors", "ScheduleConfig"),
    "tune_speed.components.speedups.base": (
        *("Averager", "RecipeView", "Shape", "Slot", "SpeedupConfig", "Start"),
    ),
    "tune_speed.core.config": ("Config",),
    "tune_speed.core.errors": ("Problem",),
    "tune_speed.data.base": ("DatasetConfig", "DecodedData", "Images", "OnProgress"),
}


def __getattr__(name: str) -> Any:
    """Imports what authors of plugins need when it is first used."""
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
