"""What holds for every optimizer, and for every learning-rate schedule."""

import copy
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tune_speed.components.optim.base import OptimizerConfig, set_rates
from tune_speed.components.schedules.base import Factors, ScheduleConfig
from tune_speed.testing.entry import ConfigContracts, Seen, named, seeded

# Other than the 1024 of `lr_per_examples`, so that a rate that is not scaled shows.
BATCH_SIZE = 384
# Weights of the small network of two dimensions or more: not its norm, nor its biases.
DECAYED = {"1.weight", "2.weight", "3.weight", "5.weight"}


class OptimizerContracts(ConfigContracts[OptimizerConfig]):
    """What holds for every optimizer."""

    table = "OPTIMIZERS"
    usual = MappingProxyType({"lr": 0.05})

    def _build(
        self, network: nn.Module, *, batch_size: int = 1, fused: bool = False, **changes: Any
    ) -> Optimizer:
        config = self._config().model_copy(update=changes)
        return config.build(network, effective_batch_size=batch_size, fused=fused)

    def _descended(self, *, fused: bool = False) -> tuple[nn.Sequential, Optimizer]:
        network = _network()
        optimizer = self._build(network, fused=fused)
        _descend(network, optimizer)
        return network, optimizer

    def steps_lower_a_quadratic(self) -> Seen:
        """Step against the gradient; if only `lr` is unfit, give another as `fields`."""
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 3.0)
        optimizer = self._build(model)
        if not isinstance(optimizer, Optimizer):
            yield f"`build` returned a {type(optimizer).__name__}, not a torch.optim.Optimizer"
        for _ in range(100):
            optimizer.zero_grad()
            (0.5 * (model.weight - 1.0).square()).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        end = float(model.weight.detach())
        if not abs(end - 1.0) < 0.5:
            yield f"on (w - 1)² / 2, 100 steps from w = 3 ended at w = {end:.4g}"

    def base_rate_is_that_of_the_config(self) -> Seen:
        """Build it over `self.groups(model, effective_batch_size)`, or take `self.step_lr(…)`."""
        for per_examples in (None, 1024):
            changes: dict[str, Any] = {"lr_per_examples": per_examples}
            groups = self._build(_network(), batch_size=BATCH_SIZE, **changes).param_groups
            config = self._config().model_copy(update=changes)
            expected = config.step_lr(BATCH_SIZE)
            rates = [group.get("base_lr", float("nan")) for group in groups]
            # Some groups may have another.
            is_there = any(abs(rate - expected) <= 1e-6 * expected for rate in rates)
            if not is_there or not all("base_lr" in group for group in groups):
                case = f"lr {config.lr}, lr_per_examples {per_examples} and {BATCH_SIZE} images"
                yield f"with {case} the groups have the `base_lr` {rates}, not {expected:.6g}"

    def a_rate_of_zero_leaves_the_weights_alone(self) -> Seen:
        """Read group['lr'] of self.param_groups in every step: schedules set it there."""
        network = _network()
        optimizer, before = self._build(network), _copies(network)
        set_rates(optimizer, Factors(lr=0.0, momentum=0.8))
        _descend(network, optimizer)
        if moved := _moved(network, before):
            yield f"{named(moved)} moved"

    def state_round_trips(self) -> Seen:
        """Keep what a step remembers in self.state[parameter] and in self.param_groups."""
        network, optimizer = self._descended()
        copied = copy.deepcopy(network)
        resumed = self._build(copied)
        # Loading keeps the very tensors that it is given; a file would hold copies.
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        _descend(network, optimizer)
        _descend(copied, resumed)
        if apart := _moved(copied, _copies(network)):
            yield f"{named(apart)} went elsewhere after it was loaded"
        pairs = zip(optimizer.param_groups, resumed.param_groups, strict=True)
        if any(one.get("base_lr") != other.get("base_lr") for one, other in pairs):
            yield "the groups have another `base_lr` after it was loaded"

    def weight_decay_shrinks_weights_but_no_norms_or_biases(self) -> Seen:
        """Decay by group['weight_decay'] of `self.groups(…)`: tensors of two dimensions or more."""
        network = _network()
        # A norm's bias begins at 0, where even one that is wrongly decayed would not move.
        nn.init.ones_(network.get_parameter("0.bias"))
        optimizer, before = self._build(network, weight_decay=0.1), _copies(network)
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        if (moved := _moved(network, before)) != DECAYED:
            yield f"gradients of 0 moved {named(moved) or 'none'}, not {named(DECAYED)}"

    def frozen_weights_are_left_out(self) -> Seen:
        """Build it over `self.groups(…)`, which has the parameters that require a gradient."""
        network = _network()
        network[0].requires_grad_(False)
        # By identity, as `==` of tensors is element by element.
        held = {id(p) for group in self._build(network).param_groups for p in group["params"]}
        trained = {id(p) for p in network.parameters() if p.requires_grad}
        if held != trained:
            some, others = len(held & trained), len(held - trained)
            yield f"of {len(trained)} others it holds {some}, and {others} that are frozen"

    def weights_without_a_gradient_are_left_alone(self) -> Seen:
        """Begin the loop over parameters with `if parameter.grad is None: continue`."""
        # After some steps: momentum from these must not move a weight that has no gradient now.
        network, optimizer = self._descended()
        network[2].requires_grad_(False)
        optimizer.zero_grad()
        # `zero_grad` sets gradients to None, torch's default since 2.0; zeros would count as one.
        before = _copies(network[2])
        _descend(network, optimizer)
        if moved := _moved(network[2], before):
            yield f"it moved {named(moved)}"

    def a_closure_computes_the_loss(self) -> Seen:
        """Call it, where `step` is given one, under torch.enable_grad(); return its loss."""
        network = _network()
        optimizer = self._build(network)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = network(torch.ones(2, 2, 5, 5)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        loss: object = optimizer.step(closure)  # type: ignore[arg-type]
        if not isinstance(loss, Tensor):
            yield f"`step` returned {loss!r}"

    def fused_kernels_take_the_same_steps(self) -> Seen:
        """Let `fused` choose how a step is computed, not which; or pass over it."""
        (plain, _), (faster, _) = self._descended(), self._descended(fused=True)
        # Fused kernels round otherwise, so that equal up to that is enough.
        if apart := _moved(faster, _copies(plain), rtol=1e-4, atol=1e-5):
            yield f"{named(apart)} went elsewhere"


def _network() -> nn.Sequential:
    with seeded(0):
        hidden = (nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1))
        layers = (nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), *hidden, nn.Flatten(), nn.Linear(27, 2))
        return nn.Sequential(*layers)


def _descend(network: nn.Module, optimizer: Optimizer) -> None:
    images = torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        optimizer.zero_grad()
        network(images).square().mean().backward()
        optimizer.step()


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def _moved(
    network: nn.Module, before: Mapping[str, Tensor], *, rtol: float = 0.0, atol: float = 0.0
) -> set[str]:
    now = network.named_parameters()
    return {name for name, p in now if not torch.allclose(p, before[name], rtol, atol)}


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
