"""Learning-rate schedules: pure functions of progress and past losses."""

from tune_speed.components.schedules import decays
from tune_speed.components.schedules.base import Constant, ScheduleConfig

SCHEDULES: dict[str, type[ScheduleConfig]] = {
    "constant": Constant,
    "multi_step": decays.MultiStep,
    "reduce_on_plateau": decays.ReduceOnPlateau,
    "cosine": decays.Cosine,
    "exponential": decays.Exponential,
    "trapezoid": decays.Trapezoid,
    "one_cycle": decays.OneCycle,
    "one_cycle_fastai": decays.OneCycleFastai,
}
