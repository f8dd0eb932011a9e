"""The base rate, always."""

from tune_speed.schedules.base import Factors, ScheduleConfig


class Constant(ScheduleConfig):
    """Leaves the rate and the momentum as the optimizer has them."""

    def factors(self, progress: float, *, step_frac: float) -> Factors:
        """Returns a factor of 1 and no momentum, whatever the progress."""
        return Factors(lr=1.0, momentum=None)
