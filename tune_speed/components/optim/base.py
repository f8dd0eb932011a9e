"""What every optimizer offers, and the fields that they share."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from tune_speed.components.schedules.base import Factors, ScheduleConfig
from tune_speed.core.config import Config

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from tune_speed.components.speedups.base import Averager

Groups = list[dict[str, Any]]
LrScales = Annotated[
    tuple[Annotated[float, Field(ge=0)], ...],
    Field(
        strict=False,
        description="Factors on the rates of layers, in the order in which the network has them:"
        " the last is of its last layer, the one before of the layer before, and the first of all"
        " that are left; norms and biases go with the layer before them. Empty: 1 for all.",
    ),
]


class OptimizerConfig(Config):
    """A rule that turns gradients into steps."""

    untimed_fields: ClassVar[frozenset[str]] = frozenset({"lr", "lr_per_examples"})
    switch_fields: ClassVar[frozenset[str]] = frozenset({"weight_decay"})
    finds_rate: ClassVar[bool] = False
    """Whether it finds a rate by itself, which is one for all weights."""
    averages_weights: ClassVar[bool] = False
    """Whether an average that it keeps is evaluated, and not the weights that train."""

    lr: float = Field(gt=0)
    """Learning rate, above 0: of one step, or per `lr_per_examples` examples."""
    lr_per_examples: int | None = Field(default=None, gt=0)
    """None: `lr` is the rate of one step. 1024: `lr` is per 1024 examples, and the rate of a step
    is lr * effective_batch_size / 1024."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay, 0 or more; each optimizer's description says how it acts."""
    decay_norms_and_biases: bool = False
    """Decay the tensors of one dimension too: weights of norms, and biases."""

    @abstractmethod
    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns the optimizer over the trainable parameters of `model`, already on its device.

        A step has `effective_batch_size` samples, for `lr_per_examples`. With `fused` it uses
        torch's fused kernels, which the device must have.
        """

    def averager(self, model: "nn.Module", optimizer: "Optimizer") -> "Averager | None":
        """Returns what has the weights to be evaluated, of what `build` returned; None: `model`."""
        return None

    def is_recordable(self, *, fused: bool, is_scaled: bool) -> bool:
        """Returns whether a step asks the host nothing, with those kernels and a loss scale."""
        return False

    def step_lr(self, effective_batch_size: int) -> float:
        """Returns the rate of a step: lr * effective_batch_size / lr_per_examples, or just lr."""
        return self.rate_of_step(self.lr, effective_batch_size)

    def rate_of_step(self, rate: float, effective_batch_size: int) -> float:
        """Returns the rate of a step for a rate that is given in the unit of `lr`."""
        if self.lr_per_examples is None:
            return rate
        return rate * effective_batch_size / self.lr_per_examples

    def rate_factor(self, samples: int, *, of: int) -> float:
        """Returns by what the rate of a step of `of` samples is multiplied for one of `samples`.

        Their ratio; at most 1 where `lr` is not given per examples, as it was chosen for less.
        Source: Goyal et al. 2017 (arXiv:1706.02677), section 2.1, linear scaling.
        """
        ratio = samples / of
        return ratio if self.lr_per_examples is not None else min(1.0, ratio)

    def groups(self, model: "nn.Module", effective_batch_size: int) -> Groups:
        """Returns the trainable parameters in up to two groups: decayed, and norms and biases.

        Norms and biases are the tensors of at most one dimension. Each group has its rate as
        `base_lr` too, from which `set_rates` derives that of a step; empty groups are left out.
        """
        lr = self.step_lr(effective_batch_size)
        trainable = [p for p in model.parameters() if p.requires_grad]
        decayed = [p for p in trainable if self.decay_norms_and_biases or p.ndim > 1]
        others = [p for p in trainable if not self.decay_norms_and_biases and p.ndim <= 1]
        return [
            {"params": parameters, "weight_decay": decay, "lr": lr, "base_lr": lr}
            for parameters, decay in ((decayed, self.weight_decay), (others, 0.0))
            if parameters
        ]


def fused_or_default(fused: bool) -> bool | None:
    # False would choose the slowest way: one parameter after the other, even on a GPU.
    return True if fused else None


def with_bias_lr(groups: Groups, lr: float | None) -> Groups:
    """Returns the groups, norms and biases apart and with the rate `lr`; None: as they are."""
    if lr is None:
        return groups
    split = []
    for group in groups:
        weights = [p for p in group["params"] if p.ndim > 1]
        biases = [p for p in group["params"] if p.ndim <= 1]
        split += [{**group, "params": weights}] if weights else []
        split += [{**group, "params": biases, "lr": lr, "base_lr": lr}] if biases else []
    return split


def with_lr_scales(groups: Groups, model: "nn.Module", scales: Sequence[float]) -> Groups:
    """Returns the groups, split where layers have rates of their own; see `LrScales`."""
    if not scales:
        return groups
    layer, layer_of = 0, dict[int, int]()
    for parameter in model.parameters():
        layer += parameter.ndim > 1
        layer_of[id(parameter)] = layer
    from_last = {key: max(0, len(scales) - 1 - layer + own) for key, own in layer_of.items()}
    return with_factors(groups, {key: scales[place] for key, place in from_last.items()})


def with_factors(groups: Groups, factors: Mapping[int, float]) -> Groups:
    """Returns the groups, split where parameters, by their ids, have other factors on the rate."""
    split = []
    for group in groups:
        by_factor = dict[float, list[Any]]()
        for parameter in group["params"]:
            by_factor.setdefault(factors[id(parameter)], []).append(parameter)
        for factor, own in by_factor.items():
            rates = {name: factor * group[name] for name in ("lr", "base_lr")}
            split.append({**group, **rates, "params": own})
    return split


MOMENTA = ("momentum", "sgd_momentum")
"""Fields that a schedule's momentum replaces; null: as the first."""


def momenta(optimizer: OptimizerConfig, schedule: ScheduleConfig) -> dict[str, bool]:
    """Returns, of each momentum that costs by being above 0, whether a run ever has it so."""
    names = [name for name in MOMENTA if name in optimizer.switch_fields]
    given = [getattr(optimizer, name) for name in names]
    own = [given[0] if value is None else value for value in given]
    steps = given_momenta(schedule)
    has = (any(value if m is None else m for m in steps) for value in own)
    return dict(zip(names, has, strict=True))


def given_momenta(schedule: ScheduleConfig) -> list[float | None]:
    """Returns the momentum that a schedule gives at eight places of a run; None: none."""
    return [schedule.factors(k / 8, step_frac=1 / 8).momentum for k in range(1, 9)]


def set_rates(optimizer: "Optimizer", factors: Factors) -> None:
    """Sets each group's rate to base_lr * factors.lr, and its momentum or beta1 where given."""
    for group in optimizer.param_groups:
        rate = group["base_lr"] * factors.lr
        if isinstance(group["lr"], float | int):
            group["lr"] = rate
        else:
            # A recorded step reads it from this memory.
            group["lr"].fill_(rate)
        if factors.momentum is None:
            continue
        # A group with neither finds its momentum by itself (YellowFin).
        if group.get("betas") is not None:
            group["betas"] = (factors.momentum, *group["betas"][1:])
        if "momentum" in group:
            group["momentum"] = factors.momentum
