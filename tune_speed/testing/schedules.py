"""What holds for every learning-rate schedule."""

import math
from collections.abc import Sequence

from tune_speed.components.schedules.base import Factors, ScheduleConfig
from tune_speed.testing.entry import ConfigContracts

# The shortest too: in a run of one step, progress is 1 at once.
LENGTHS = (1, 2, 3, 7, 100, 1000)
# Losses that fall and then stall, for schedules that then lower the rate.
STALLED = (2.3, 1.0, 1.0, 1.1, 0.9, 0.9, 0.9)
SIGNATURE = "`def factors(self, progress, *, step_frac, losses=()) -> Factors`"


class ScheduleContracts(ConfigContracts[ScheduleConfig]):
    """What holds for every learning-rate schedule."""

    table = "SCHEDULES"

    def _factors(self, num_steps: int, *, losses: Sequence[float] = ()) -> list[Factors]:
        config = self._config()
        progress = [(k + 1) / num_steps for k in range(num_steps)]
        fix = f"It is called as {SIGNATURE}, with progress in (0, 1] and step_frac 1 / steps."
        with self._working(f"`factors` must answer for each step of a run of {num_steps}", fix=fix):
            return [config.factors(p, step_frac=1 / num_steps, losses=losses) for p in progress]

    def factors_are_finite_and_positive_in_runs_of_any_length(self) -> None:
        """A rate of 0 would waste a step; momentum is a share."""
        for num_steps in LENGTHS:
            for k, factors in enumerate(self._factors(num_steps, losses=STALLED)):
                self._require(
                    isinstance(factors, Factors),
                    "`factors` must return Factors(lr=…, momentum=…)",
                    seen=f"it returned {factors!r}",
                    fix="Import Factors from tune_speed.components; momentum may be None.",
                )
                lr, momentum = factors
                where = f"in step {k} of {num_steps} it is"
                self._require(
                    math.isfinite(lr) and lr > 0,
                    "the rate's factor must be finite and above 0 in every step",
                    seen=f"{where} {lr}",
                    fix="The last step has progress 1, the first step_frac: take the step's"
                    " beginning, progress - step_frac, for a curve that falls to 0.",
                )
                self._require(
                    momentum is None or 0 <= momentum < 1,
                    "momentum must be None or in [0, 1)",
                    seen=f"{where} {momentum}",
                    fix="Give the momentum itself, not a factor of it.",
                )

    def factors_are_a_pure_function(self) -> None:
        """The same inputs give the same factors: a resumed run has the same rates."""
        losses = list(STALLED)
        first = self._factors(20, losses=losses)
        again = self._factors(20, losses=losses)
        other = self._factors(20, losses=tuple(losses))
        self._require(
            first == again == other,
            "the same progress and losses must give the same factors",
            seen=_difference(first, again if first != again else other),
            fix="Keep nothing between calls and draw nothing: compute from `progress`, `step_frac`"
            " and `losses` alone.",
        )
        claim = "`factors` must leave `losses` as they are"
        fix = "Work on a copy: `sorted(losses)`, `[*losses]`."
        self._require(losses == list(STALLED), claim, f"{list(STALLED)} became {losses}", fix)

    def only_a_schedule_that_says_so_follows_the_loss(self) -> None:
        """A schedule that looks at losses cannot be shown before a run."""
        if self.entry.follows_loss:
            return
        without = self._factors(20)
        stalled = self._factors(20, losses=[1.0] * 50)
        claim = "factors must not depend on losses where `follows_loss` is False"
        fix = "Write `follows_loss: ClassVar[bool] = True` into the class, or pass over `losses`."
        self._require(without == stalled, claim, seen=_difference(without, stalled), fix=fix)


def _difference(first: list[Factors], second: list[Factors]) -> str:
    pairs = enumerate(zip(first, second, strict=True))
    apart = (f"step {k} of 20 had {one} and then {two}" for k, (one, two) in pairs if one != two)
    return next(apart, "")
