"""Optimizers."""

from tune_speed.components.optim.base import OptimizerConfig
from tune_speed.components.optim.libraries import ScheduleFreeAdamW, ScheduleFreeSgd, TimmOptimizer
from tune_speed.components.optim.optimizers import Adam, AdamW, Muon, Sgd, Swats, YellowFin

OPTIMIZERS: dict[str, type[OptimizerConfig]] = {
    "sgd": Sgd,
    "adam": Adam,
    "adamw": AdamW,
    "swats": Swats,
    "yellowfin": YellowFin,
    "muon": Muon,
    "schedule_free_sgd": ScheduleFreeSgd,
    "schedule_free_adamw": ScheduleFreeAdamW,
    "timm": TimmOptimizer,
}
