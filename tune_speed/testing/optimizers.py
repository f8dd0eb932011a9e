"""What holds for every optimizer."""

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tune_speed.components.optim.base import OptimizerConfig, set_rates
from tune_speed.components.schedules.base import Factors
from tune_speed.testing.entry import ConfigContracts, seeded

# Other than the 1024 of `lr_per_examples`, so that a rate that is not scaled shows.
BATCH_SIZE = 384
SIGNATURE = "`def build(self, model, *, effective_batch_size: int, fused: bool)`"
GROUPS = "Build it over `self.groups(model, effective_batch_size)`"
# Weights of the small network of two dimensions or more: not its norm, nor its biases.
DECAYED = {"1.weight", "2.weight", "3.weight", "5.weight"}


class OptimizerContracts(ConfigContracts[OptimizerConfig]):
    """What holds for every optimizer."""

    table = "OPTIMIZERS"
    usual = MappingProxyType({"lr": 0.05})

    def _build(
        self,
        network: nn.Module,
        *,
        batch_size: int = 1,
        fused: bool = False,
        changes: Mapping[str, Any] = MappingProxyType({}),
    ) -> Optimizer:
        config = self._config().model_copy(update=changes)
        fix = f"It is called as {SIGNATURE}; kernels of one's own may pass over `fused`."
        with self._working("`build` must return an optimizer over the network's weights", fix=fix):
            optimizer = config.build(network, effective_batch_size=batch_size, fused=fused)
        self._require(
            isinstance(optimizer, Optimizer),
            "`build` must return a torch.optim.Optimizer",
            seen=f"it returned {type(optimizer).__name__}",
            fix="Derive it from torch.optim.Optimizer, and end `build` with `return`.",
        )
        return optimizer

    def _built(self) -> tuple[nn.Sequential, Optimizer]:
        network = _network()
        return network, self._build(network)

    def steps_lower_a_quadratic(self) -> None:
        """100 steps on (w - 1)² / 2 from w = 3 come nearer than a half."""
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 3.0)
        optimizer = self._build(model)
        for _ in range(100):
            optimizer.zero_grad()
            (0.5 * (model.weight - 1.0).square()).sum().backward()  # type: ignore[no-untyped-call]
            self._step(optimizer)
        end = float(model.weight.detach())
        self._require(
            abs(end - 1.0) < 0.5,
            "100 steps on (w - 1)² / 2 from w = 3 must end within 0.5 of w = 1",
            seen=f"they ended at w = {end:.4g}",
            fix="Step against the gradient; if only the rate is unfit, give another `lr` as"
            f" `fields={{'{self.name}': {{'lr': …}}}}`.",
        )

    def base_rate_is_that_of_the_config(self) -> None:
        """`lr` itself, or by examples with `lr_per_examples`; some groups may have another."""
        for per_examples in (None, 1024):
            network = _network()
            changes = {"lr_per_examples": per_examples}
            optimizer = self._build(network, batch_size=BATCH_SIZE, changes=changes)
            config = self._config().model_copy(update=changes)
            expected = config.step_lr(BATCH_SIZE)
            bare = [group for group in optimizer.param_groups if "base_lr" not in group]
            self._require(
                not bare,
                "every parameter group must have its rate as `base_lr` too",
                seen=f"{len(bare)} of {len(optimizer.param_groups)} have none",
                fix=f"{GROUPS}.",
            )
            rates = [float(group["base_lr"]) for group in optimizer.param_groups]
            self._require(
                any(abs(rate - expected) <= 1e-6 * expected for rate in rates),
                f"with lr {config.lr} and lr_per_examples {per_examples}, steps of {BATCH_SIZE}"
                f" images must have the base rate {expected:.6g}",
                seen=f"the groups have {rates}",
                fix=f"{GROUPS}, or take `self.step_lr(effective_batch_size)`.",
            )

    def a_rate_of_zero_leaves_the_weights_alone(self) -> None:
        """Schedules set `lr` of the parameter groups, and so does the timing of steps."""
        network, optimizer = self._built()
        before = _copies(network)
        with self._working("a schedule must be able to set its rate", fix=f"{GROUPS}."):
            set_rates(optimizer, Factors(lr=0.0, momentum=0.8))
        self._descend(network, optimizer, 3)
        moved = _moved(network, before)
        self._require(
            not moved,
            "steps must leave the weights alone while the groups' `lr` is 0, as a schedule sets it",
            seen=f"{_names(moved)} moved",
            fix="Read group['lr'] of self.param_groups in every step, instead of a rate that was"
            " stored when the optimizer was made.",
        )

    def state_round_trips(self) -> None:
        """A resumed run takes the same steps."""
        network, optimizer = self._built()
        self._descend(network, optimizer, 3)
        copied = copy.deepcopy(network)
        resumed = self._build(copied)
        fix = (
            "Keep what a step remembers in self.state[parameter] and in self.param_groups, so that"
            " torch's state_dict has it."
        )
        with self._working("the state dict must be loadable", fix=fix):
            # Loading keeps the very tensors that it is given; a file would hold copies.
            resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        self._descend(network, optimizer, 3)
        self._descend(copied, resumed, 3)
        apart = _moved(copied, _copies(network))
        claim = "after its state dict is loaded, it must take the same steps"
        self._require(not apart, claim, seen=f"{_names(apart)} went elsewhere", fix=fix)
        first, other = (
            [group.get("base_lr") for group in one.param_groups] for one in (optimizer, resumed)
        )
        claim = "after its state dict is loaded, its groups must have the same `base_lr`"
        self._require(first == other, claim, f"they have {other} instead of {first}", f"{GROUPS}.")

    def weight_decay_shrinks_weights_but_no_norms_or_biases(self) -> None:
        """Where gradients are zero, decay alone moves weights."""
        network = _network()
        # A norm's bias begins at 0, where even one that is wrongly decayed would not move.
        nn.init.ones_(network.get_parameter("0.bias"))
        optimizer = self._build(network, changes={"weight_decay": 0.1})
        before = _copies(network)
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self._step(optimizer)
        moved = _moved(network, before)
        self._require(
            moved == DECAYED,
            f"with weight_decay 0.1 and gradients of 0, a step must move {_names(DECAYED)}:"
            " tensors of two dimensions or more",
            seen=f"it moved {_names(moved)}",
            fix=f"{GROUPS}, and decay by group['weight_decay'].",
        )

    def frozen_weights_are_left_out(self) -> None:
        """Weights that do not require a gradient, as of a layer that is not trained."""
        network = _network()
        network[0].requires_grad_(False)
        optimizer = self._build(network)
        # By identity, as `==` of tensors is element by element.
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        trained = {id(p) for p in network.parameters() if p.requires_grad}
        self._require(
            held == trained,
            f"it must hold the {len(trained)} parameters that require a gradient",
            seen=f"it holds {len(held & trained)} of these and {len(held - trained)} others",
            fix=f"{GROUPS}, which has just these.",
        )

    def weights_without_a_gradient_are_left_alone(self) -> None:
        """As those of a block that stochastic depth skips."""
        network, optimizer = self._built()
        self._descend(network, optimizer, 3)
        # After some steps: momentum from these must not move a weight that has no gradient now.
        network[2].requires_grad_(False)
        optimizer.zero_grad()
        # `zero_grad` sets gradients to None, torch's default since 2.0; zeros would count as one.
        before = _copies(network[2])
        self._descend(network, optimizer, 2)
        moved = _moved(network[2], before)
        claim = "a step must leave weights without a gradient alone"
        fix = "Begin the loop over parameters with `if parameter.grad is None: continue`."
        self._require(not moved, claim, seen=f"it moved {_names(moved)}", fix=fix)

    def a_closure_computes_the_loss(self) -> None:
        """As torch's optimizers take one."""
        network, optimizer = self._built()

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = network(torch.ones(2, 2, 5, 5)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        fix = (
            "Begin `def step(self, closure=None)` with `loss = None if closure is None else"
            " closure()`, under torch.enable_grad(), and return `loss`."
        )
        with self._working("`step` must take a closure", fix=fix):
            loss: object = optimizer.step(closure)  # type: ignore[arg-type]
        claim = "`step` must return what its closure returns"
        self._require(isinstance(loss, Tensor), claim, seen=f"it returned {loss!r}", fix=fix)

    def fused_kernels_take_the_same_steps(self) -> None:
        """Recipes ask for fused kernels unless they say otherwise."""
        plain, faster = _network(), _network()
        for network, fused in ((plain, False), (faster, True)):
            self._descend(network, self._build(network, fused=fused), 3)
        # Fused kernels round otherwise, so that equal up to that is enough.
        apart = _moved(faster, _copies(plain), rtol=1e-4, atol=1e-5)
        claim = "its steps must be the same with `fused=True` and without"
        fix = "Let `fused` choose how a step is computed, not which; or pass over it."
        self._require(not apart, claim, seen=f"{_names(apart)} went elsewhere", fix=fix)

    def _descend(self, network: nn.Module, optimizer: Optimizer, num_steps: int) -> None:
        images = torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(1))
        for _ in range(num_steps):
            optimizer.zero_grad()
            network(images).square().mean().backward()
            self._step(optimizer)

    def _step(self, optimizer: Optimizer) -> None:
        with self._working("`step()` must work", fix="Look at the error below."):
            optimizer.step()


def _network() -> nn.Sequential:
    with seeded(0):
        hidden = (nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1))
        layers = (nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), *hidden, nn.Flatten(), nn.Linear(27, 2))
        return nn.Sequential(*layers)


def _copies(network: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def _moved(
    network: nn.Module, before: Mapping[str, Tensor], *, rtol: float = 0.0, atol: float = 0.0
) -> set[str]:
    same = {
        name: torch.allclose(p, before[name], rtol, atol) for name, p in network.named_parameters()
    }
    return {name for name, is_same in same.items() if not is_same}


def _names(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"
