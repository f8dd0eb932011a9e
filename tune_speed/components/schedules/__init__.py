"""Learning-rate schedules: pure functions of progress and past losses, one file each."""

from tune_speed.components.schedules.base import Factors, ScheduleConfig
from tune_speed.components.schedules.constant import Constant
from tune_speed.components.schedules.cosine import Cosine
from tune_speed.components.schedules.drop_on_stall import DropOnStall
from tune_speed.components.schedules.one_cycle import OneCycle
from tune_speed.components.schedules.one_cycle_fastai import OneCycleFastai
from tune_speed.components.schedules.step_drops import StepDrops
from tune_speed.components.schedules.trapezoid import Trapezoid

SCHEDULES: dict[str, type[ScheduleConfig]] = {
    "constant": Constant,
    "step_drops": StepDrops,
    "drop_on_stall": DropOnStall,
    "cosine": Cosine,
    "trapezoid": Trapezoid,
    "one_cycle": OneCycle,
    "one_cycle_fastai": OneCycleFastai,
}
"""Every schedule by the name it has in YAML."""

__all__ = [
    "SCHEDULES",
    "Constant",
    "Cosine",
    "DropOnStall",
    "Factors",
    "OneCycle",
    "OneCycleFastai",
    "ScheduleConfig",
    "StepDrops",
    "Trapezoid",
]
