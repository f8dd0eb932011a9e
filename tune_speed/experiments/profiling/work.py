"""What one optimizer step computes and moves, counted rather than timed.

| symbol | meaning                                                             | how it is known   |
|--------|---------------------------------------------------------------------|-------------------|
| F      | floating-point operations of forward and backward                   | counted (`flops`) |
| m      | micro-batches of the step                                           | exact             |
| P      | bytes of the parameters                                             | exact             |
| G      | bytes of their gradients                                            | exact             |
| S      | bytes of the optimizer's state                                      | exact             |
| A      | bytes that a micro-batch's forward keeps for its backward           | measured          |
| X      | bytes of a micro-batch's images                                     | exact             |

Bytes that are moved, at least, if nothing stays in a cache from one use to the next:

    forward       P + X + A        weights and images read, what is kept written
    backward      P + A + G        weights and what is kept read, gradients written
    next ones     + G each         gradients so far read, to be added to
    optimizer     2 P + G + 2 S    weights and state read and written, gradients read

    B = m (2 P + X + 2 A + G) + (m - 1) G + 2 P + G + 2 S

That is an estimate: what is not kept (activations' gradients, results of element-wise operations)
is left out, and what a cache holds is counted. A is that of the uncompiled network.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class StepBytes(NamedTuple):
    """Bytes, by the symbols of this module's table."""

    parameters: int
    gradients: int
    optimizer_state: int
    saved: int
    """A: what a micro-batch's forward keeps."""
    images: int
    """X: of a micro-batch."""
    num_micro_batches: int


def moved_bytes(step: StepBytes) -> int:
    """Returns B = m (2 P + X + 2 A + G) + (m - 1) G + 2 P + G + 2 S, in bytes."""
    p, g, s, m = step.parameters, step.gradients, step.optimizer_state, step.num_micro_batches
    return m * (2 * p + step.images + 2 * step.saved + g) + (m - 1) * g + 2 * p + g + 2 * s


def parameter_bytes(model: nn.Module) -> tuple[int, int]:
    """Returns the bytes of all parameters, and of those that get a gradient."""
    parameters = list(model.parameters())
    return (
        sum(p.nbytes for p in parameters),
        sum(p.nbytes for p in parameters if p.requires_grad),
    )


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Returns the bytes of the tensors that the optimizer remembers; none before its first step."""
    return sum(_tensor_bytes(state) for state in optimizer.state.values())


def _tensor_bytes(state: Any) -> int:
    if isinstance(state, Tensor):
        return int(state.nbytes)
    if isinstance(state, dict):
        return sum(_tensor_bytes(value) for value in state.values())
    if isinstance(state, list | tuple):
        return sum(_tensor_bytes(value) for value in state)
    return 0


def saved_bytes(call: Callable[[], object], model: nn.Module) -> int:
    """Returns the bytes that autograd keeps during `call`, which does a forward and a backward.

    Memory that several operations keep counts once, parameters and buffers of `model` not at all.
    """
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            kept[address] = max(kept.get(address, 0), tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(kept.values())
