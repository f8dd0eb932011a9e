"""A convolution whose gradient keeps the channels with the largest output gradients only.

On one CPU core, keeping a quarter of 256 channels makes the backward pass of a 3x3 convolution
about four times faster; with 16 channels, choosing them costs about what it saves.

| symbol | shape          | meaning                                   |
|--------|----------------|-------------------------------------------|
| x      | (N, I, H, W)   | inputs                                    |
| w      | (O, I, h, w)   | weights                                   |
| dy     | (N, O, H', W') | gradient of the loss by the output        |
| kept   | (k,)           | output channels that pass back what dy has |
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from tune_speed.components.speedups.modules.sparse_backward import in_autocast_dtype


class Geometry(NamedTuple):
    """How a convolution goes over its input."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


class SparseConv2d(nn.Conv2d):
    """Shares the parameters of a convolution; its backward pass keeps `k` output channels."""

    def __init__(self, layer: nn.Conv2d, *, k: int) -> None:
        super().__init__(
            layer.in_channels,
            layer.out_channels,
            cast(tuple[int, int], layer.kernel_size),
            stride=cast(tuple[int, int], layer.stride),
            padding=cast(tuple[int, int], layer.padding),
            dilation=cast(tuple[int, int], layer.dilation),
            bias=False,
            device="meta",
        )
        self.weight, self.k = layer.weight, k
        self.register_parameter("bias", cast("nn.Parameter | None", layer.bias))

    def forward(self, input: Tensor) -> Tensor:
        """Returns (N, out_channels, H', W') of (N, in_channels, H, W)."""
        if self.k >= self.out_channels:
            return super().forward(input)
        geometry = Geometry(self.stride, cast(tuple[int, ...], self.padding), self.dilation)
        tensors = in_autocast_dtype(input, self.weight, self.bias)
        return cast(Tensor, SparseConvolution.apply(*tensors, self.k, geometry))


class SparseConvolution(torch.autograd.Function):
    """The convolution y = w ∗ x + b, with dx and dw of k channels of dy, and db of all of it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, k: int, geometry: Geometry
    ) -> Tensor:
        """Returns y (N, O, H', W'), exact."""
        ctx.save_for_backward(x, w)
        ctx.k, ctx.geometry = k, geometry
        return nn.functional.conv2d(x, w, b, *geometry)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, dy: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        """Returns dx, dw, db; None for what needs no gradient."""
        x, w = ctx.saved_tensors
        needs_dx, needs_dw, needs_db = ctx.needs_input_grad[:3]
        # Five times faster than vector_norm on a CPU with channels last.
        kept = dy.abs().sum(dim=(0, 2, 3), dtype=torch.float32).topk(ctx.k, sorted=False).indices
        dx, small_dw, _ = torch.ops.aten.convolution_backward(
            _channels(dy, kept),
            x,
            w.index_select(0, kept),
            None,
            *ctx.geometry,
            False,
            (0, 0),
            1,
            (needs_dx, needs_dw, False),
        )
        dw = torch.zeros_like(w).index_copy_(0, kept, small_dw) if needs_dw else None
        return dx, dw, dy.sum(dim=(0, 2, 3)) if needs_db else None, None, None


def _channels(images: Tensor, kept: Tensor) -> Tensor:
    """Returns some of the channels, in the memory layout of the images."""
    if images.is_contiguous(memory_format=torch.channels_last):
        return images.movedim(1, -1).index_select(-1, kept).movedim(-1, 1)
    return images.index_select(1, kept)


def sparsify_convolutions(model: nn.Module, *, frac: float) -> None:
    """Puts a `SparseConv2d` in the place of each hidden convolution; it keeps `frac`, at least 1.

    With O output channels, k = max(1, round(frac · O)).
    """
    for name, layer in hidden_convolutions(model).items():
        k = max(1, round(frac * layer.out_channels))
        model.set_submodule(name, SparseConv2d(layer, k=k))


def hidden_convolutions(model: nn.Module) -> dict[str, nn.Conv2d]:
    """Returns the convolutions over all channels, zero-padded, but for an output layer, by name.

    The last convolution is the output layer of a network that has no linear one.
    """
    layers = {name: m for name, m in model.named_modules() if type(m) is nn.Conv2d}
    if layers and not any(isinstance(module, nn.Linear) for module in model.modules()):
        layers.popitem()
    return {name: layer for name, layer in layers.items() if _is_plain(layer)}


def _is_plain(layer: nn.Conv2d) -> bool:
    is_zero_padded = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return layer.groups == 1 and is_zero_padded
