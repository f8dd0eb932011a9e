"""Speed-ups that act on model, batch, loss or evaluation, one file each.

Those that are plain settings are fields of the recipe: `tune-speed list speedups` names them too.
Importing this package imports no torch.
"""

from tune_speed.components.speedups.base import SpeedupConfig
from tune_speed.components.speedups.batch_stages import BatchStages
from tune_speed.components.speedups.boosted import Boosted
from tune_speed.components.speedups.dropout_removal import DropoutRemoval
from tune_speed.components.speedups.easiest_first import EasiestFirst
from tune_speed.components.speedups.ema import Ema
from tune_speed.components.speedups.focal import Focal
from tune_speed.components.speedups.kaiming import Kaiming
from tune_speed.components.speedups.meprop import MeProp
from tune_speed.components.speedups.pretrain_other import PretrainOther
from tune_speed.components.speedups.pretrain_subset import PretrainSubset
from tune_speed.components.speedups.progressive_resizing import ProgressiveResizing
from tune_speed.components.speedups.selective_backprop import SelectiveBackprop
from tune_speed.components.speedups.stochastic_depth import StochasticDepth
from tune_speed.components.speedups.tta import Tta
from tune_speed.components.speedups.whitening import Whitening

SPEEDUPS: dict[str, type[SpeedupConfig]] = {
    "dropout_removal": DropoutRemoval,
    "stochastic_depth": StochasticDepth,
    "boosted": Boosted,
    "meprop": MeProp,
    "kaiming": Kaiming,
    "whitening": Whitening,
    "pretrain_subset": PretrainSubset,
    "pretrain_other": PretrainOther,
    "progressive_resizing": ProgressiveResizing,
    "batch_stages": BatchStages,
    "selective_backprop": SelectiveBackprop,
    "focal": Focal,
    "easiest_first": EasiestFirst,
    "ema": Ema,
    "tta": Tta,
}
"""Every speed-up by the name it has in YAML, in the slot that it names."""

__all__ = ["SPEEDUPS", "SpeedupConfig"]
