"""The gradient of a micro-batch: computed operation by operation, or recorded once and replayed."""

import gc
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.speedups.base import Shape
from tune_speed.training.recipe import Recipe

AUTOCAST_DTYPES = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "half": None,
    "half_fp32_norms": None,
}

Forward = Callable[[Tensor], Tensor]
"""Images (N, C, H, W) to logits (N, num_classes)."""
# Libraries choose kernels and take their workspaces in the first passes.
# Passes before one is recorded.
REHEARSALS = 2
# Where epochs differ in length, later kinds are not worth one.
MOST_KINDS = 16
"""Recordings of a run."""


class Gradient(Protocol):
    """Adds micro-batches' gradients to those of the parameters."""

    def begin(self) -> None:
        """Readies the parameters for a step, whose gradients begin at 0."""

    def add(
        self, images: Tensor, labels: Tensor, *, divisor: float, shape: Shape, frac: float
    ) -> Tensor:
        """Adds the gradient of (sum of losses) / `divisor`, scaled; returns that sum.

        Images are (B, C, H, W), normalised; labels (B,). The step learns from `divisor` samples,
        and ends at `frac` of the run, in (0, 1].
        """


class EagerGradient:
    """Computes it operation by operation."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        forward: Forward,
        scaler: torch.amp.GradScaler,
        device: torch.device,
    ) -> None:
        """Takes the model, compiled or not, and the scaler of its loss."""
        self._recipe, self._forward, self._scaler = recipe, forward, scaler
        self._device = device

    def begin(self) -> None:
        """Does nothing: a step ends without gradients, and the first ones are the sum so far."""

    def add(
        self, images: Tensor, labels: Tensor, *, divisor: float, shape: Shape, frac: float
    ) -> Tensor:
        """Adds the gradient; see `Gradient`."""
        speedups, forward, device = self._recipe.speedups, self._forward, self._device
        images = speedups.resolution.change_batch(images, shape)
        images, labels = speedups.selection.choose(images, labels, shape, losses=self._losses)
        loss = sum_of_losses(
            images, labels, self._recipe, frac=frac, forward=forward, device=device
        )
        torch.autograd.backward(self._scaler.scale(loss / divisor))
        return loss.detach()

    def _losses(self, images: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of each image, (B,), by which a speed-up may choose among them."""
        dtype = AUTOCAST_DTYPES[self._recipe.precision]
        autocast = torch.autocast(self._device.type, dtype, enabled=dtype is not None)
        with torch.no_grad(), autocast:
            logits = self._forward(images)
        return functional.cross_entropy(logits.float(), labels, reduction="none")


_Kind = tuple[tuple[int, ...], float, Shape]
"""What is fixed in a recording: shape of the images, divisor, shape of the step."""


class Recorded(NamedTuple):
    """A recorded call, which reads and writes the memory that it had when it was recorded."""

    replay: Callable[[], None]
    """Does it again."""
    result: Tensor
    """What it returned last."""
    pool: Any
    """Memory that it works in."""


class _Recording(NamedTuple):
    """A recorded pass, and what it reads."""

    recorded: Recorded
    images: Tensor
    labels: Tensor


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the one stream of this process on which steps are rehearsed and recorded."""
    # cuBLAS has a workspace for each stream, which is never freed: about 64 MiB on Hopper
    # (pytorch 99196).
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def record_graph(call: Callable[[], Tensor], device: torch.device, pool: Any) -> Recorded:
    """Returns the call as a CUDA graph, in the memory of an earlier one if given."""
    if pool is None:
        # A graph that died later would take the stream's workspace along (pytorch 193402).
        gc.collect()
    stream, graph = _recording_stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(REHEARSALS):
            call()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            result = call()
    torch.cuda.current_stream(device).wait_stream(stream)
    return Recorded(graph.replay, result, pool or graph.pool())


RECORDERS: dict[str, Callable[[Callable[[], Tensor], torch.device, Any], Recorded]] = {
    "cuda": record_graph
}
"""What records a call on each type of device; on the others nothing is recorded."""


# On a fast GPU a small network's step is bound by the host, which launches hundreds of short
# kernels one by one. Recorded as a CUDA graph, they are launched together, with the same results.
class RecordedGradient:
    """Records a pass of each kind of micro-batch as a CUDA graph, and replays it.

    Gradients are in buffers of their own, which every pass adds to.
    """

    def __init__(
        self,
        eager: EagerGradient,
        model: nn.Module,
        *,
        scaler: torch.amp.GradScaler,
        device: torch.device,
    ) -> None:
        """Records nothing yet: the first micro-batch of a kind does."""
        self._eager, self._model, self._scaler, self._device = eager, model, scaler, device
        self._gradients = [(p, torch.zeros_like(p)) for p in model.parameters() if p.requires_grad]
        self._recordings: dict[_Kind, _Recording] = {}
        # Memory of the first recording; the others share it, as no two of them run at once.
        self._pool: Any = None

    def begin(self) -> None:
        """Gives the parameters that are trained their gradients' buffers, all zero."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient if parameter.requires_grad else None
        torch._foreach_zero_([gradient for _, gradient in self._gradients])

    def add(
        self, images: Tensor, labels: Tensor, *, divisor: float, shape: Shape, frac: float
    ) -> Tensor:
        """Adds the gradient; see `Gradient`. The sum of losses holds until the next call."""
        kind = (tuple(images.shape), divisor, shape)
        is_new = kind not in self._recordings
        if is_new and len(self._recordings) == MOST_KINDS:
            return self._eager.add(images, labels, divisor=divisor, shape=shape, frac=frac)
        if is_new:
            self._recordings[kind] = self._record(images, labels, kind)
        recording = self._recordings[kind]
        recording.images.copy_(images)
        recording.labels.copy_(labels)
        recording.recorded.replay()
        return recording.recorded.result

    def refuse_nonsense(self) -> None:
        """Raises: RuntimeError if the gradients so far are all zero, or no numbers."""
        # A graph that was recorded on another device or stream than its work is empty.
        sizes = torch.stack([g.abs().amax().float() for _, g in self._gradients if g.numel()])
        largest = float(sizes.max())
        # Under a loss scale the first gradients may overflow, which lowers it.
        if largest > 0 and (math.isfinite(largest) or self._scaler.is_enabled()):
            return
        raise RuntimeError(
            f"a recorded step must have gradients, but the largest of them is {largest:g}."
            " Try cuda_graph: false."
        )

    def _record(self, images: Tensor, labels: Tensor, kind: _Kind) -> _Recording:
        """Leaves gradients, batch statistics and random numbers as they were."""
        images, labels = images.clone(), labels.clone()
        before = [gradient.clone() for _, gradient in self._gradients]
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        # The first call makes the scale, which must not be recorded.
        self._scaler.scale(torch.zeros((), device=self._device))
        _, divisor, shape = kind

        def once() -> Tensor:
            return self._eager.add(images, labels, divisor=divisor, shape=shape, frac=1.0)

        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            recorded = RECORDERS[self._device.type](once, self._device, self._pool)
        self._pool = recorded.pool
        for (_, gradient), value in zip(self._gradients, before, strict=True):
            gradient.copy_(value)
        for name, buffer in self._model.named_buffers():
            buffer.copy_(buffers[name])
        return _Recording(recorded, images, labels)


def gradient_of(
    recipe: Recipe,
    model: nn.Module,
    *,
    forward: Forward,
    scaler: torch.amp.GradScaler,
    device: torch.device,
) -> Gradient:
    """Returns what computes the recipe's gradients: recorded on a GPU with `cuda_graph`."""
    eager = EagerGradient(recipe, forward=forward, scaler=scaler, device=device)
    assert recipe.cuda_graph != "auto", "it is settled before training"
    if not recipe.cuda_graph or device.type not in RECORDERS:
        return eager
    return RecordedGradient(eager, model, scaler=scaler, device=device)


def sum_of_losses(
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    frac: float,
    forward: Forward,
    device: torch.device,
) -> Tensor:
    """Returns the sum over samples of the loss [nat], in fp32 whatever the precision.

    The loss is cross-entropy, unless a speed-up has its own.
    """
    dtype = AUTOCAST_DTYPES[recipe.precision]
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        logits = forward(images)
    smoothing = recipe.label_smoothing
    loss = recipe.speedups.sum_of_losses(
        logits.float(), labels, frac=frac, label_smoothing=smoothing
    )
    if loss is not None:
        return loss
    return functional.cross_entropy(
        logits.float(), labels, reduction="sum", label_smoothing=smoothing
    )
