"""What the optimizers of this folder do with all tensors of a model at once."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.sgd import sgd

# Computes the loss and its gradients again; only callers outside this package give one.
Closure = Callable[[], Any]


def evaluated(closure: Closure | None) -> Any:
    if closure is None:
        return None
    # `step` runs under no_grad, where the closure could compute no gradients.
    with torch.enable_grad():
        return closure()


def with_gradients(groups: Sequence[dict[str, Any]]) -> list[Tensor]:
    """Returns the weights of `groups` that have a gradient: a skipped block's have none."""
    held = chain.from_iterable(group["params"] for group in groups)
    return [weight for weight in held if weight.grad is not None]


def gradients_of(weights: Sequence[Tensor]) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def momentum_buffers(optimizer: Optimizer, weights: Sequence[Tensor]) -> list[Any]:
    """Returns the momentum buffers of the weights, zeros at first."""
    for weight in weights:
        if "momentum_buffer" not in optimizer.state[weight]:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return [optimizer.state[weight]["momentum_buffer"] for weight in weights]


def sgd_step(optimizer: Optimizer, weights: list[Tensor], **settings: Any) -> None:
    """Does torch's step of SGD without dampening, of weights that all have a gradient."""
    buffers = momentum_buffers(optimizer, weights)
    sgd(weights, gradients_of(weights), buffers, dampening=0.0, maximize=False, **settings)


def shared_state(optimizer: Optimizer) -> dict[Any, Any]:
    """Returns the optimizer's state, which also holds what belongs to no single weight."""
    return cast(dict[Any, Any], optimizer.state)


def decayed_gradients(groups: Sequence[dict[str, Any]]) -> list[Tensor]:
    """Returns gradient + weight_decay * weight, in the order of `with_gradients`."""
    gradients: list[Tensor] = []
    for group in groups:
        weights = with_gradients([group])
        decay = group["weight_decay"]
        raw = gradients_of(weights)
        gradients += torch._foreach_add(raw, weights, alpha=decay) if decay and raw else raw
    return gradients


def squared_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the sum of all squared entries, shape `()`, float64, on the tensors' device."""
    norms = torch._foreach_norm(list(tensors))
    return torch.stack(list(norms)).double().square().sum()


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Returns all entries as one vector, each tensor in its logical order."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
