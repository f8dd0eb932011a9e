"""The torch part of Muon."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tune_speed.components.optim.torch import tensor_lists

# Of s <- a s + b s^3 + c s^5 on every singular value: Keller Jordan's, which lift small values
# as fast as possible and leave all of them between about 0.68 and 1.13 instead of at 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Keeps the norm of a zero matrix from dividing by 0.
EPS = 1e-7


def orthogonalized(tensors: Sequence[Tensor], *, num_iterations: int) -> list[Tensor]:
    """Returns about U V^T of each tensor's U S V^T; `(D0, D1, …)` is `(D0, D1 * …)`."""
    # Matrices of one shape, or its transpose, go through the iteration as one batch: a network has
    # many layers of few shapes, and small products are all overhead.
    batches: dict[tuple[int, int], list[int]] = defaultdict(list)
    matrices = [_in_memory_order(tensor).flatten(1) for tensor in tensors]
    wide = [m.mT if m.shape[0] > m.shape[1] else m for m in matrices]
    for index, matrix in enumerate(wide):
        batches[matrix.shape[0], matrix.shape[1]].append(index)
    results = list(tensors)
    for indices in batches.values():
        stacked = newton_schulz(torch.stack([wide[i] for i in indices]), num_iterations)
        for index, matrix in zip(indices, stacked.unbind(), strict=True):
            rows, columns = matrices[index].shape
            ordered = (matrix.mT if rows > columns else matrix).reshape(
                _in_memory_order(tensors[index]).shape
            )
            is_turned = _is_channels_last(tensors[index])
            results[index] = ordered.permute(0, 3, 1, 2) if is_turned else ordered
    return results


def _is_channels_last(tensor: Tensor) -> bool:
    return (
        tensor.ndim == 4
        and not tensor.is_contiguous()
        and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _in_memory_order(tensor: Tensor) -> Tensor:
    return tensor.permute(0, 2, 3, 1) if _is_channels_last(tensor) else tensor


def newton_schulz(matrices: Tensor, num_iterations: int) -> Tensor:
    """Returns matrices `(B, M, N)`, M <= N, with the same singular vectors and values near 1.

    X <- X / ||X||, then num_iterations times X <- a X + (b A + c A^2) X with A = X X^T.

    Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
    """
    a, b, c = COEFFICIENTS
    # As the record holders do: the error of bfloat16 is far below that of the polynomial.
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    # The Frobenius norm is at least the largest singular value: all of them begin in [0, 1].
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(num_iterations):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.to(matrices.dtype)


# torch.optim.Muon takes two dimensions only, and one matrix after the other.
class MuonOptimizer(Optimizer):
    """Muon for groups with `orthogonal`, SGD with momentum for the others."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        momentum: float,
        nesterov: bool,
        newton_schulz_steps: int,
        normalize_weights: bool,
        fused: bool | None,
    ) -> None:
        defaults = {"momentum": momentum, "nesterov": nesterov, "fused": fused}
        super().__init__(groups, defaults)
        self.newton_schulz_steps = newton_schulz_steps
        self.normalize_weights = normalize_weights

    @torch.no_grad()
    def step(self, closure: tensor_lists.Closure | None = None) -> Any:
        loss = tensor_lists.evaluated(closure)
        for group in self.param_groups:
            weights = tensor_lists.with_gradients([group])
            if not weights:
                continue
            if group["weight_decay"]:
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            if group["orthogonal"]:
                self._muon_step(group, weights)
            else:
                # The weights were decayed already, apart from the gradient.
                names = ("fused", "momentum", "lr", "nesterov")
                settings = {name: group[name] for name in names}
                tensor_lists.sgd_step(self, weights, weight_decay=0.0, **settings)
        return loss

    def _muon_step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        if self.normalize_weights:
            norms = torch._foreach_norm(weights)
            roots = [math.sqrt(len(weight)) for weight in weights]
            # The least norm only keeps a weight that is all zeros from becoming NaN.
            factors = torch._foreach_div(torch._foreach_clamp_min(norms, 1e-12), roots)
            torch._foreach_div_(weights, factors)
        gradients = tensor_lists.gradients_of(weights)
        buffers = tensor_lists.momentum_buffers(self, weights)
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, gradients)
        updates = (
            list(torch._foreach_add(gradients, buffers, alpha=group["momentum"]))
            if group["nesterov"]
            else buffers
        )
        steps = orthogonalized(updates, num_iterations=self.newton_schulz_steps)
        # A tall matrix gets the step of a square one per row: sqrt(max(1, rows / columns)).
        scales = [math.sqrt(max(1.0, len(w) * len(w) / w.numel())) for w in weights]
        torch._foreach_mul_(steps, scales)
        # A tensor in a recorded step.
        torch._foreach_mul_(steps, group["lr"])
        torch._foreach_sub_(weights, steps)
