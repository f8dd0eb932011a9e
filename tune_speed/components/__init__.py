"""What a recipe names: models, optimizers, schedules, speed-ups and metrics, and plugins.

Authors of plugins import from here:

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
    from tune_speed.components.speedups.base import Off, SpeedupConfig
    from tune_speed.data.base import DatasetConfig, Images

__all__ = [
    "DatasetConfig",
    "Factors",
    "Images",
    "Metric",
    "ModelConfig",
    "Off",
    "OptimizerConfig",
    "ScheduleConfig",
    "SpeedupConfig",
]

# Lazily: each sub-package imports this one first.
_MODULES = {
    "DatasetConfig": "tune_speed.data.base",
    "Factors": "tune_speed.components.schedules.base",
    "Images": "tune_speed.data.base",
    "Metric": "tune_speed.components.metrics.base",
    "ModelConfig": "tune_speed.components.models.base",
    "Off": "tune_speed.components.speedups.base",
    "OptimizerConfig": "tune_speed.components.optim.base",
    "ScheduleConfig": "tune_speed.components.schedules.base",
    "SpeedupConfig": "tune_speed.components.speedups.base",
}


def __getattr__(name: str) -> Any:
    """Imports a base class when it is first used."""
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
