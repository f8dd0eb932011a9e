"""One training as it was ordered: what must be reached, how, on which data, and where."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from tune_speed.components.speedups.base import Shape
from tune_speed.data.split import Splits
from tune_speed.training.build import StepSchedule, step_schedule_of
from tune_speed.training.ranks import Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload

Part = Literal["validation", "test"]
"""Of the data: that a search is judged on, or that certified results are."""


@dataclass(frozen=True)
class Job:
    """What stays the same from a run's start to its end."""

    workload: Workload
    recipe: Recipe
    """As it runs: of its fields none is `auto`."""
    splits: Splits
    seed: int
    device: torch.device
    evaluated_on: Part
    ranks: Ranks
    """Those that train together."""

    @cached_property
    def step_schedule(self) -> StepSchedule:
        """The run as shapes of steps, each with its number of steps in a row."""
        return step_schedule_of(self.recipe, self.splits)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Each shape of step once, in the order of the run."""
        return tuple(dict(self.step_schedule))
