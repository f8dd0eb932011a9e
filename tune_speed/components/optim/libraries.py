"""Any optimizer of timm, by name, with the fields of its signature."""

import inspect
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tune_speed.components.optim.base import OptimizerConfig
from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import first_line

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

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
