"""Learning-rate schedules: pure functions of progress and past losses, one file each."""

from tune_speed.components.schedules.base import Factors, ScheduleConfig
from tune_speed.components.schedules.cosine import Cosine
from tune_speed.components.schedules.exponential import Exponential
from tune_speed.components.schedules.multi_step import MultiStep
from tune_speed.components.schedules.one_cycle import OneCycle, OneCycleFastai
from tune_speed.components.schedules.reduce_on_plateau import ReduceOnPlateau
from tune_speed.components.schedules.trapezoid import Trapezoid
from tune_speed.components.schedules.warmup import Constant

SCHEDULES: dict[str, type[ScheduleConfig]] = {
    "constant": Constant,
    "multi_step": MultiStep,
    "reduce_on_plateau": ReduceOnPlateau,
    "cosine": Cosine,
    "exponential": Exponential,
    "trapezoid": Trapezoid,
    "one_cycle": OneCycle,
    "one_cycle_fastai": OneCycleFastai,
}
"""Every schedule by the name it has in YAML."""

__all__ = ["SCHEDULES", "Constant", "Factors", "ScheduleConfig"]
