"""Learning-rate schedules: pure functions of progress and past losses."""

from tune_speed.components.schedules.base import Constant, ScheduleConfig
from tune_speed.components.schedules.decays import (
    Cosine,
    Exponential,
    MultiStep,
    OneCycle,
    OneCycleFastai,
    ReduceOnPlateau,
    Trapezoid,
)

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
