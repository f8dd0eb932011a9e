"""What holds for every learning-rate schedule."""

import math
from collections.abc import Sequence

from tune_speed.components.schedules.base import Factors, ScheduleConfig
from tune_speed.testing.entry import ConfigContracts, Seen

# The shortest too: in a run of one step, progress is 1 at once.
LENGTHS = (1, 2, 3, 7, 100, 1000)
# Losses that fall and then stall, for schedules that then lower the rate.
STALLED = (2.3, 1.0, 1.0, 1.1, 0.9, 0.9, 0.9)


class ScheduleContracts(ConfigContracts[ScheduleConfig]):
    """What holds for every learning-rate schedule."""

    table = "SCHEDULES"

    def _factors(self, num_steps: int, *, losses: Sequence[float] = ()) -> list[Factors]:
        config = self._config()
        progress = [(k + 1) / num_steps for k in range(num_steps)]
        return [config.factors(p, step_frac=1 / num_steps, losses=losses) for p in progress]

    def factors_are_finite_and_positive_in_runs_of_any_length(self) -> Seen:
        """Return Factors of progress - step_frac, a step's beginning: lr > 0, momentum below 1."""
        for num_steps in LENGTHS:
            for k, factors in enumerate(self._factors(num_steps, losses=STALLED)):
                is_one = isinstance(factors, Factors)
                if not is_one or not (math.isfinite(factors.lr) and factors.lr > 0):
                    yield f"step {k} of {num_steps} has {factors!r}"
                elif factors.momentum is not None and not 0 <= factors.momentum < 1:
                    yield f"step {k} of {num_steps} has the momentum {factors.momentum}"

    def factors_are_a_pure_function(self) -> Seen:
        """Keep nothing between calls, draw nothing, and sort a copy of `losses`."""
        losses = list(STALLED)
        first, again = (self._factors(20, losses=losses) for _ in range(2))
        yield from _differences(first, again)
        yield from _differences(first, self._factors(20, losses=tuple(losses)))
        if losses != list(STALLED):
            yield f"the losses {list(STALLED)} became {losses}"

    def only_a_schedule_that_says_so_follows_the_loss(self) -> Seen:
        """Write `follows_loss: ClassVar[bool] = True` into the class, or pass over `losses`."""
        if not self.entry.follows_loss:
            yield from _differences(self._factors(20), self._factors(20, losses=[1.0] * 50))


def _differences(first: list[Factors], second: list[Factors]) -> Seen:
    for k, (one, two) in enumerate(zip(first, second, strict=True)):
        if one != two:
            yield f"step {k} of 20 had {one} and then {two}"
