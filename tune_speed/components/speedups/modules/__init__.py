"""What the speed-ups do inside a training, which needs torch: imported when it is first used."""

from typing import TYPE_CHECKING

from tune_speed.core.lazy import lazy_modules

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

__getattr__ = lazy_modules(__name__, __all__)
