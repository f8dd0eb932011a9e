"""A network in fp16 throughout, or but for its normalisation layers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm)


class Half(nn.Module):
    """Images of any type in, fp16 logits (N, K) out; without a master copy of the weights.

    A negative control for autocast, which keeps weights and their updates in fp32. With
    `has_fp32_norms` normalisation layers have weights, statistics and sums in fp32; their outputs
    are fp16 again.

    Source: Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740, on what is lost;
    K. Jordan 2024 (arXiv:2404.00498) trains with batch norm in fp32 and all else in fp16.
    """

    def __init__(self, network: nn.Module, *, has_fp32_norms: bool = False) -> None:
        super().__init__()
        # A step smaller than 2^-11 of a weight is lost, and gradients below 2^-24 are zero.
        self.network = network.half()
        # Squares of activations overflow fp16 beyond 255.
        if has_fp32_norms:
            for module in self.network.modules():
                if isinstance(module, NORMS):
                    module.float()
                # Batch norms in fp32 take fp16 as it is, without a copy on either side.
                if isinstance(module, NORMS) and not isinstance(module, _BatchNorm):
                    module.register_forward_pre_hook(_to_float)
                    module.register_forward_hook(_to_half)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images.half())
        return logits


def _to_float(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.float() if torch.is_tensor(value) else value for value in inputs)


def _to_half(_module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.half()
