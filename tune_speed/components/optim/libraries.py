"""Optimizers of other packages: timm's by name, and those that need no schedule."""

import inspect
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tune_speed.components.optim.base import OptimizerConfig
from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import first_line

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from tune_speed.components.speedups.base import Averager

OURS = frozenset(
    {"params", "lr", "weight_decay", "fused", "capturable", "foreach", "maximize"}
    | {"differentiable", "verbose", "mu_dtype", "precond_dtype"}
)
"""Arguments that other fields and the kind of step decide, or that YAML has no values for."""
RECORDED = frozenset({"adam", "adamw", "adamax", "radam", "radamw"})
"""Optimizers whose steps a graph holds. They are torch's, and `capturable`; of others that are by
their signature some ask the host for the rate, and timm's own moved no weights in tests."""


class TimmOptimizer(OptimizerConfig):
    """Any first-order optimizer of timm, by name; further fields are those of its signature.

    `{timm: {name: lamb, lr: 0.005, trust_clip: true}}`: what is not given is as timm has it. Weight
    decay acts as it does there. What needs gradients of gradients (adahessian) is refused, and what
    is another package's (apex, bitsandbytes).

    Source: the library timm, `timm.optim.create_optimizer_v2`, whose classes name their papers.
    """

    model_config = ConfigDict(extra="allow")
    untimed_fields = OptimizerConfig.untimed_fields | {"betas", "eps", "momentum"}

    name: str = "lamb"
    """Name in timm, such as `lamb`, `lion`, `adan` or `nadamw`."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], ...] | None = Field(None, strict=False)
    """Memories of running means, each in [0, 1); a schedule that cycles the momentum replaces the
    first. null: timm's own."""
    eps: float | None = Field(default=None, gt=0)
    """Keeps divisors from 0, above 0; null: timm's own."""
    momentum: float | None = Field(default=None, gt=0, lt=1)
    """Momentum, in (0, 1); a schedule that cycles the momentum replaces it. null: timm's 0.9."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        from timm.optim import get_optimizer_info, list_optimizers

        if name not in (names := list_optimizers()):
            text = f"must be the name of an optimizer of timm{did_you_mean(name, names)}"
        elif get_optimizer_info(name).second_order:
            text = f"must be a first-order optimizer: {name} needs gradients of gradients"
        elif isinstance(kind := get_optimizer_info(name).opt_class, str):
            text = f"must be one of timm's own: {name} is {kind}, of another package"
        else:
            return name
        raise PydanticCustomError("optimizer_name", "{text}", {"text": text})

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        import torch

        fields = _fields(self.name)
        for field, value in self.settings().items():
            if field not in fields:
                near = did_you_mean(field, fields) or f": it takes {', '.join(fields)}"
                raise ValueError(
                    f"`{field}` must be left out, as timm's {self.name} has none{near}"
                )
            own = fields[field]
            is_other = isinstance(own, tuple) and len(own) != len(value)
            if is_other or isinstance(own, bool) != isinstance(value, bool):
                raise ValueError(f"`{field}` must be like timm's {own!r}, not {value!r}")
        try:
            # Before any trial starts.
            self._create([{"params": [torch.nn.Parameter(torch.zeros(2, 2))]}], self.lr)
        except (TypeError, ValueError, LookupError, NotImplementedError) as error:
            text = f"must have fields that timm's {self.name} takes: {first_line(error)}"
            raise ValueError(text) from error
        return self

    def settings(self) -> dict[str, Any]:
        """Returns the arguments of timm's class that are given, but for rate and weight decay."""
        shared = self.model_dump(mode="json", include={"betas", "eps", "momentum"})
        given = {name: value for name, value in shared.items() if value is not None}
        return {**given, **(self.model_extra or {})}

    @classmethod
    def more_fields(cls) -> Iterable[str]:
        """Returns the fields of all of timm's own optimizers."""
        from timm.optim import list_optimizers

        own = list_optimizers(exclude_filters=["bnb*", "fused*"])
        return {field for name in own for field in _fields(name)}

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns timm's optimizer, which is as fast with `fused` as without."""
        groups = self.groups(model, effective_batch_size)
        return self._create(groups, self.step_lr(effective_batch_size))

    def _create(self, groups: list[dict[str, Any]], lr: float) -> "Optimizer":
        from timm.optim import create_optimizer_v2

        given = {n: tuple(v) if isinstance(v, list) else v for n, v in self.settings().items()}
        optimizer: Optimizer = create_optimizer_v2(groups, self.name, lr=lr, **given)
        return optimizer

    def is_recordable(self, *, fused: bool, is_scaled: bool) -> bool:
        """Returns whether a graph holds its steps; a scaler would ask the host for overflows."""
        return self.name in RECORDED and not is_scaled


@cache
def _signature(name: str) -> dict[str, Any]:
    from timm.optim import get_optimizer_class, get_optimizer_info

    parameters = inspect.signature(get_optimizer_class(name, bind_defaults=False)).parameters
    defaults = get_optimizer_info(name).defaults or {}
    return {field: each.default for field, each in parameters.items()} | defaults


def _fields(name: str) -> dict[str, Any]:
    return {field: default for field, default in _signature(name).items() if field not in OURS}


class ScheduleFreeSgd(OptimizerConfig):
    r"""Schedule-free SGD: no rule needs the length of the run, and an average is evaluated.

    With weights z that SGD moves, their mean x, gradient g at y, weight decay d and rate r,

        y = (1 - beta1) z + beta1 x
        z <- z - r (g + d y)
        x <- (1 - c) x + c z,   c = m^2 / (sum of m^2 so far),   m the highest rate so far

    The network trains at y; x is what is evaluated and kept. It is made for a schedule that is
    constant after a warm-up. beta1 takes the place of the momentum, and no schedule may change it.
    Batch norms keep the statistics of y, where the authors pass batches through x: with ResNet-8 on
    digits that lost 2 to 5 points of accuracy in one epoch of 38 steps, and nothing from three on.

    Source: Defazio et al., "The road less scheduled", arXiv 2405.15682; the package schedulefree.
    """

    untimed_fields = OptimizerConfig.untimed_fields | {"beta1"}
    averages_weights: ClassVar[bool] = True

    beta1: float = Field(default=0.9, gt=0, lt=1)
    """Share of the mean in the weights that train, in (0, 1); 0.98 may suit long runs."""

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns the package's optimizer; it has no fused kernels."""
        from schedulefree import SGDScheduleFree

        groups = self.groups(model, effective_batch_size)
        return _in_training(SGDScheduleFree(groups, momentum=self.beta1))

    def averager(self, model: "nn.Module", optimizer: "Optimizer") -> "Averager":
        from tune_speed.components.speedups.modules.ema import Interpolated

        return Interpolated(model, optimizer, beta=self.beta1)


class ScheduleFreeAdamW(ScheduleFreeSgd):
    """Schedule-free AdamW: as schedule-free SGD, with Adam's second moment in place of momentum.

    The gradient is divided by sqrt(v) + eps, with the mean v of its squares, before the decay.

    Source: as schedule-free SGD, algorithm 1.
    """

    untimed_fields = ScheduleFreeSgd.untimed_fields | {"beta2", "eps"}

    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Memory of the mean squared gradient, in [0, 1)."""
    eps: float = Field(default=1e-8, gt=0)
    """Keeps the divisor from 0, above 0."""

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        from schedulefree import AdamWScheduleFree

        groups = self.groups(model, effective_batch_size)
        return _in_training(AdamWScheduleFree(groups, betas=(self.beta1, self.beta2), eps=self.eps))


def _in_training(optimizer: Any) -> "Optimizer":
    trained: Optimizer = optimizer
    optimizer.train()
    return trained
