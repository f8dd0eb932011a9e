"""A batch that grows over the run."""

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from tune_speed.components.speedups.base import Slot, SpeedupConfig

Share = Annotated[float, Field(ge=0, lt=1)]
Factor = Annotated[int, Field(ge=1, le=1024)]


class BatchStages(SpeedupConfig):
    """The batch grows: from `at[i]` of the run on, a step has `factors[i]` times the samples.

    Micro-batches stay as they are; a step has more of them. The rate stays too: a larger batch
    lowers the noise of the gradient, as a lower rate would, but with fewer optimizer steps. It
    saves time where optimizer steps or the exchange of gradients cost much.

    Source: Smith et al. 2018, Don't Decay the Learning Rate, Increase the Batch Size
    (arXiv:1711.00489), section 4. Deviation: stages begin at given shares of the samples.
    """

    slot: ClassVar[Slot] = "batch_growth"
    untimed_fields = frozenset({"factors", "at"})

    factors: tuple[Factor, ...] = (1, 2, 4)
    """Samples of a step over `effective_batch_size` in each stage."""
    at: tuple[Share, ...] = (0.0, 0.5, 0.75)
    """Share of the run's samples at which each stage begins: ascending, the first 0."""

    @field_validator("factors", "at", mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        # YAML and JSON have lists, which strict validation does not take for a tuple.
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        if not self.at or len(self.at) != len(self.factors):
            raise ValueError("at must have as many entries as factors, and at least one")
        if self.at[0] != 0:
            raise ValueError("at must begin with 0")
        if any(earlier >= later for earlier, later in pairwise(self.at)):
            raise ValueError("at must be ascending")
        return self

    def growth(self) -> tuple[tuple[float, int], ...]:
        """Returns the stages: share of the run's samples, factor."""
        shares = (end - start for start, end in pairwise((*self.at, 1.0)))
        return tuple(zip(shares, self.factors, strict=True))
