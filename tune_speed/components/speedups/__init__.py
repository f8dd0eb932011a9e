"""Speed-ups that act on model, batch, loss or evaluation.

Those that are plain settings are fields of the recipe: `tune-speed list speedups` names them too.
Importing this package imports no torch.
"""

from tune_speed.components.speedups.base import SpeedupConfig
from tune_speed.components.speedups.batches import (
    BatchStages,
    ProgressiveResizing,
    SelectiveBackprop,
)
from tune_speed.components.speedups.evaluation import Ema, Tta
from tune_speed.components.speedups.initial_weights import (
    Kaiming,
    PretrainOther,
    PretrainSubset,
    Whitening,
)
from tune_speed.components.speedups.losses import Bce, EasiestFirst, Focal
from tune_speed.components.speedups.network import Boosted, DropoutRemoval, MeProp, StochasticDepth

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
    "bce": Bce,
    "focal": Focal,
    "easiest_first": EasiestFirst,
    "ema": Ema,
    "tta": Tta,
}
"""Every speed-up by the name it has in YAML, in the slot that it names."""
