"""Optimizers, one file each."""

from tune_speed.components.optim.adam import Adam, AdamW
from tune_speed.components.optim.base import (
    MOMENTA,
    OptimizerConfig,
    given_momenta,
    momenta,
    set_rates,
)
from tune_speed.components.optim.muon import Muon
from tune_speed.components.optim.sgd import Sgd
from tune_speed.components.optim.swats import Swats
from tune_speed.components.optim.yellowfin import YellowFin

OPTIMIZERS: dict[str, type[OptimizerConfig]] = {
    "sgd": Sgd,
    "adam": Adam,
    "adamw": AdamW,
    "swats": Swats,
    "yellowfin": YellowFin,
    "muon": Muon,
}
"""Every optimizer by the name it has in YAML."""

__all__ = [
    "MOMENTA",
    "OPTIMIZERS",
    "Adam",
    "AdamW",
    "Muon",
    "OptimizerConfig",
    "Sgd",
    "Swats",
    "YellowFin",
    "given_momenta",
    "momenta",
    "set_rates",
]
