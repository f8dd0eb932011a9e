"""What the speed-ups do inside a training, which needs torch: imported when it is first used."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tune_speed.components.speedups.modules import (
        ema,
        heads,
        initial_weights,
        losses,
        residual,
        sparse_backward,
    )

__all__ = ["ema", "heads", "initial_weights", "losses", "residual", "sparse_backward"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
