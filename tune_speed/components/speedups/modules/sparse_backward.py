"""A linear layer whose gradient keeps the largest output gradients only.

| symbol | shape  | meaning                                          |
|--------|--------|--------------------------------------------------|
| x      | (M, I) | inputs of M samples                              |
| w      | (O, I) | weights; y = x wᵀ + b                            |
| dy     | (M, O) | gradient of the loss by y                        |
| kept   | (k,)   | outputs that pass back what dy has (unified)     |
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, None, None]
"""dx, dw, db; None for what needs no gradient."""


class SparseLinear(nn.Linear):
    """Shares the parameters of a linear layer; its backward pass keeps `k` outputs."""

    def __init__(self, layer: nn.Linear, *, k: int, unified: bool) -> None:
        # On meta: weights that are replaced at once cost no memory and draw no random numbers.
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight, self.k, self.unified = layer.weight, k, unified
        self.register_parameter("bias", layer.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Returns (…, out_features) of (…, in_features)."""
        if self.k >= self.out_features:
            return super().forward(input)
        inputs, weight, bias = in_autocast_dtype(input, self.weight, self.bias)
        flat = inputs.reshape(-1, self.in_features)
        outputs = SparseBackward.apply(flat, weight, bias, self.k, self.unified)
        return cast(Tensor, outputs).reshape(*input.shape[:-1], self.out_features)


class SparseBackward(torch.autograd.Function):
    """y = x wᵀ + b, with dx and dw of the k largest |dy|, and db of all of it.

    The largest are each sample's or, if `unified`, the outputs with the largest Σ |dy| over them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, k: int, unified: bool) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.k, ctx.unified = k, unified
        return functional.linear(x, w, b)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Gradients:
        x, w = ctx.saved_tensors
        needs_dx, needs_dw, needs_db = ctx.needs_input_grad[:3]
        if ctx.unified:
            # In fp32, as sums over many samples may overflow fp16.
            kept = dy.abs().sum(dim=0, dtype=torch.float32).topk(ctx.k, sorted=False).indices
            small = dy.index_select(1, kept)
            dx = small @ w.index_select(0, kept) if needs_dx else None
            dw = torch.zeros_like(w).index_copy_(0, kept, small.T @ x) if needs_dw else None
        else:
            kept = dy.abs().topk(ctx.k, dim=1, sorted=False).indices
            sparse = torch.zeros_like(dy).scatter_(1, kept, dy.gather(1, kept))
            dx = sparse @ w if needs_dx else None
            dw = sparse.T @ x if needs_dw else None
        return dx, dw, dy.sum(dim=0) if needs_db else None, None, None


def hidden_linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Returns the linear layers but the last and those with as many outputs, by name."""
    # Subclasses are left out: those of torch do not call their `forward`, or quantise.
    layers = {name: m for name, m in model.named_modules() if type(m) is nn.Linear}
    if not layers:
        return {}
    *_, last = layers.values()
    return {name: m for name, m in layers.items() if m.out_features != last.out_features}


def in_autocast_dtype(
    inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns a layer's tensors in the type that autocast, where it is on, computes layers in."""
    # `torch.amp.custom_fwd` does this too, but for one kind of device only.
    if not torch.is_autocast_enabled(inputs.device.type):
        return inputs, weight, bias
    dtype = torch.get_autocast_dtype(inputs.device.type)
    return inputs.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


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
        ctx.save_for_backward(x, w)
        ctx.k, ctx.geometry = k, geometry
        return nn.functional.conv2d(x, w, b, *geometry)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Gradients:
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
    # Along dimension 1, index_select would turn channels-last images into contiguous ones.
    if images.is_contiguous(memory_format=torch.channels_last):
        return images.movedim(1, -1).index_select(-1, kept).movedim(-1, 1)
    return images.index_select(1, kept)


def sparsify_convolutions(model: nn.Module, *, frac: float) -> None:
    """Puts a `SparseConv2d` in each hidden convolution's place, k = max(1, round(frac · O))."""
    for name, layer in hidden_convolutions(model).items():
        k = max(1, round(frac * layer.out_channels))
        model.set_submodule(name, SparseConv2d(layer, k=k))


def hidden_convolutions(model: nn.Module) -> dict[str, nn.Conv2d]:
    """Returns convolutions over all channels, zero-padded, but for one that is the output layer."""
    layers = {name: m for name, m in model.named_modules() if type(m) is nn.Conv2d}
    if layers and not any(isinstance(module, nn.Linear) for module in model.modules()):
        layers.popitem()
    return {
        name: layer
        for name, layer in layers.items()
        if layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    }
