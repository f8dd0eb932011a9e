"""Optimizers, one file each."""

from tune_speed.components.optim.base import (
    MOMENTA,
    OptimizerConfig,
    given_momenta,
    momenta,
    set_rates,
)
from tune_speed.components.optim.optimizers import Adam, AdamW, Muon, Sgd, Swats, YellowFin

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
