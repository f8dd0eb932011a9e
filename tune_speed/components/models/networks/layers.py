"""A network's layers in order: their rates, those that are frozen at first, what is computed twice.

Layers are timm's own groups where a network of timm has them. Elsewhere they are modules in the
order of registration: containers are taken apart, and what has one of more than half the weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from tune_speed.components.speedups.base import refusal
from tune_speed.components.speedups.modules.heads import heads_of
from tune_speed.core.config import did_you_mean

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
FROZEN = "frozen_part"
"""Attribute of a network with layers to freeze: these modules, and all of their parameters."""


def rate_factors(
    model: nn.Module, layer_decay: float | None, head_scale: float
) -> dict[int, float]:
    """Returns the factor on each parameter's rate, by its id.

    Layer l of 0…L has layer_decay^(L − l), times `head_scale` for layers that give logits. What
    timm's groups leave out belongs to the last layer, as in `timm.optim.param_groups_layer_decay`.

    Raises: ConfigError if there is only one layer.

    Source: Bao et al., "BEiT", 2022 (arXiv:2106.08254), and its optim_factory.py; timm.
    """
    factors = dict.fromkeys(map(id, model.parameters()), 1.0)
    if layer_decay is not None:
        layer_of = _layer_of(model)
        last = max(layer_of.values(), default=0)
        if last == 0:
            must = "must be null for a network without layers to order"
            raise refusal("layer_decay", must=must, given=type(model).__name__)
        factors |= {key: layer_decay ** (last - layer) for key, layer in layer_of.items()}
    if head_scale != 1.0:
        for _, head in heads_of(model):
            factors |= {id(p): head_scale * factors[id(p)] for p in head.parameters()}
    return factors


def _layer_of(model: nn.Module) -> dict[int, int]:
    """Returns the number of each parameter's layer, from 0, by the parameter's id."""
    for network in model.modules():
        if callable(matcher := getattr(network, "group_matcher", None)):
            from timm.models import group_parameters

            groups = group_parameters(network, matcher(coarse=False), reverse=True)
            return {id(network.get_parameter(name)): layer for name, layer in groups.items()}
    # Tokens and embeddings of what is taken apart belong to the first layer.
    layer_of, layer = dict.fromkeys(map(id, model.parameters()), 0), -1
    for module in _layers(model):  # A norm belongs to the layer before it.
        layer = max(0, layer + any(p.ndim > 1 for p in module.parameters()))
        layer_of |= dict.fromkeys(map(id, module.parameters()), layer)
    return layer_of


def _layers(model: nn.Module) -> list[nn.Module]:
    def size(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    def walk(parent: nn.Module) -> Iterator[nn.Module]:
        for child in parent.children():
            within = [each for each in child.modules() if isinstance(each, CONTAINERS)]
            is_apart = child in within or any(size(each) > size(model) / 2 for each in within)
            yield from walk(child) if is_apart or size(child) == size(model) else [child]

    return [layer for layer in walk(model) if size(layer)]


def take_heads(model: nn.Module, fresh: nn.Module) -> None:
    """Gives the layers of logits the weights of those of `fresh`."""
    for name, head in heads_of(model):
        head.load_state_dict(fresh.get_submodule(name).state_dict())


def mark_frozen(model: nn.Module, until: str) -> None:
    """Remembers what comes before the module `until`, or before the first that gives logits.

    Raises: ConfigError if there is no such module, or nothing to train before it.
    """
    names = [name for name, _ in model.named_modules() if name]
    first = next((n for n, _ in heads_of(model)), until) if until == "head" else until
    if first not in names:
        near = did_you_mean(until, names).removeprefix("; ") or f"they are {', '.join(names[:20])}"
        must = f"must be head or a module of {type(model).__name__}"
        raise refusal("freeze.until", must=must, given=until, hint=near)
    above = {first[:n] for n, letter in enumerate(first) if letter == "."} | {""}
    before = [name for name in names[: names.index(first)] if name not in above]
    modules = [model.get_submodule(n) for n in before if n.rpartition(".")[0] in above]
    own = [p for name in above for p in model.get_submodule(name).parameters(recurse=False)]
    trained = [p for p in (*own, *nn.ModuleList(modules).parameters()) if p.requires_grad]
    if not trained:
        raise refusal("freeze.until", must="must have weights before it", given=until)
    setattr(model, FROZEN, (tuple(modules), tuple(trained)))


def set_frozen(model: nn.Module, *, is_frozen: bool) -> None:
    """Freezes or trains what `mark_frozen` has found; frozen modules are in evaluation mode.

    As nothing before them needs a gradient, autograd records nothing and keeps no activations.
    """
    modules, parameters = next(getattr(m, FROZEN) for m in model.modules() if hasattr(m, FROZEN))
    for parameter in parameters:
        parameter.requires_grad_(not is_frozen)
    for module in modules:
        # An evaluation puts all of the network back into training mode.
        if module.training == is_frozen:
            module.train(not is_frozen)


def checkpoint_layers(model: nn.Module) -> None:
    """Has the activations within each layer computed again in the backward pass, and not kept.

    Results are the same: what is drawn at random is drawn again alike, and statistics of batch
    norms are taken once. (`set_grad_checkpointing` of timm takes them twice.)

    Raises: ConfigError if no layer consists of others.

    Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016 (arXiv:1604.06174);
    the code is torch.utils.checkpoint.
    """
    layers = [layer for layer in _layers(model) if any(layer.children())]
    if not layers:
        must = "must be false for a network without layers that consist of others"
        raise refusal("activation_checkpointing", must=must, given=type(model).__name__)
    for layer in layers:
        layer.forward = partial(_checkpointed, layer)


def _checkpointed(layer: nn.Module, *inputs: Any, **named: Any) -> Any:
    # The class's own, as the instance's is this function.
    forward = partial(type(layer).forward, layer)
    if not (layer.training and torch.is_grad_enabled()):
        return forward(*inputs, **named)

    def contexts() -> Any:
        return nullcontext(), _statistics_kept(layer)

    return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)


@contextmanager
def _statistics_kept(layer: nn.Module) -> Iterator[None]:
    norms = [module for module in layer.modules() if isinstance(module, _NormBase)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        # Not `track_running_stats`: what is saved for the backward pass must be the same.
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
