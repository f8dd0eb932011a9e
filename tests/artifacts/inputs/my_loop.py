"""A training function that nears 1 the quicker the larger its rate."""

import math
import time
from dataclasses import dataclass

PAUSE_S = 0.01


@dataclass
class Climber:
    """Where a run stands."""

    rate: float
    step: int = 0

    def climb(self) -> float:
        """Goes a step and returns the metric there."""
        time.sleep(PAUSE_S)
        self.step += 1
        return 1 - math.exp(-self.rate * self.step / 50)


def climbs(params, run):
    """Pretends to work."""
    climber = Climber(params["rate"], step=(run.restored() or {"step": 0})["step"])
    with run.timed():
        while climber.step < 200:
            metric = climber.climb()
            run.step()
            if climber.step % 5 == 0:
                run.evaluated(step=climber.step, metric=metric)
                run.save(lambda: {"step": climber.step})
