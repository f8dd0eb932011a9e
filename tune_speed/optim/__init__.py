"""Optimizers, one file each."""

from tune_speed.optim.adam import Adam
from tune_speed.optim.adamw import AdamW
from tune_speed.optim.base import OptimizerConfig
from tune_speed.optim.rates import set_rates
from tune_speed.optim.sgd import Sgd

OPTIMIZERS: dict[str, type[OptimizerConfig]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}
"""Every optimizer by the name it has in YAML."""

__all__ = ["OPTIMIZERS", "Adam", "AdamW", "OptimizerConfig", "Sgd", "set_rates"]
