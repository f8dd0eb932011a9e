"""Learning-rate schedules: pure functions of progress, one file each."""

from tune_speed.schedules.base import Factors, ScheduleConfig
from tune_speed.schedules.constant import Constant
from tune_speed.schedules.one_cycle import OneCycle

SCHEDULES: dict[str, type[ScheduleConfig]] = {"constant": Constant, "one_cycle": OneCycle}
"""Every schedule by the name it has in YAML."""

__all__ = ["SCHEDULES", "Constant", "Factors", "OneCycle", "ScheduleConfig"]
