"""Speed-ups that act on model, batch, loss or evaluation, one file each.

Those that are plain settings are fields of the recipe: `tune-speed list speedups` names them too.
Importing this package imports no torch.
"""

from tune_speed.speedups.base import SpeedupConfig
from tune_speed.speedups.batch_stages import BatchStages
from tune_speed.speedups.boosted import Boosted
from tune_speed.speedups.dropout_removal import DropoutRemoval
from tune_speed.speedups.easiest_first import EasiestFirst
from tune_speed.speedups.ema import Ema
from tune_speed.speedups.focal import Focal
from tune_speed.speedups.kaiming import Kaiming
from tune_speed.speedups.meprop import MeProp
from tune_speed.speedups.pretrain_other import PretrainOther
from tune_speed.speedups.pretrain_subset import PretrainSubset
from tune_speed.speedups.progressive_resizing import ProgressiveResizing
from tune_speed.speedups.selective_backprop import SelectiveBackprop
from tune_speed.speedups.stochastic_depth import StochasticDepth
from tune_speed.speedups.tta import Tta
from tune_speed.speedups.whitening import Whitening

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
