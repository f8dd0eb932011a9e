"""What a recipe names: models, optimizers, schedules, speed-ups and metrics, and plugins.

Authors of plugins import all that they need from here: the base of each kind of entry, the types
in the signatures of its methods, `Config` for nested fields, and `Problem` for `refusals`:

```python
from tune_speed.components import ModelConfig, OptimizerConfig
```
"""

from typing import TYPE_CHECKING

from tune_speed.core.lazy import lazy_names

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
    from tune_speed.core.records import Normalisation
    from tune_speed.data.base import Counts, DatasetConfig, DecodedData, Images, OnProgress

__all__ = [
    "Averager", "Config", "Counts", "DatasetConfig", "DecodedData", "Factors", "Images", "Metric",
    "ModelConfig", "Normalisation", "OnProgress", "OptimizerConfig", "Problem", "RecipeView",
    "ScheduleConfig", "Shape", "Slot", "SpeedupConfig", "Start",
]  # fmt: skip

# Lazily: each sub-package imports this one first.
__getattr__ = lazy_names(
    __name__,
    {
        "metrics.base": ("Metric",),
        "models.base": ("ModelConfig",),
        "optim.base": ("OptimizerConfig",),
        "schedules.base": ("Factors", "ScheduleConfig"),
        "speedups.base": ("Averager", "RecipeView", "Shape", "Slot", "SpeedupConfig", "Start"),
        ".core.config": ("Config",),
        ".core.errors": ("Problem",),
        ".core.records": ("Normalisation",),
        ".data.base": ("Counts", "DatasetConfig", "DecodedData", "Images", "OnProgress"),
    },
)
