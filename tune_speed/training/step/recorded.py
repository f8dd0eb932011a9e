"""An optimizer step recorded as one CUDA graph, and replayed."""

import gc
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tune_speed.data.loaders.base import Batch, made_from
from tune_speed.runtime.device import remembered

# Libraries choose kernels and take their workspaces in the first passes.
# Passes before one is recorded.
REHEARSALS = 2
# Where epochs differ in length, later kinds are not worth one.
MOST_KINDS = 16
"""Recordings of a run."""
MOST_BATCHES = 64
"""Micro-batches of a step that is recorded: each of them is some hundred nodes of the graph."""


class Recorded(NamedTuple):
    """A recorded call, which reads and writes the memory that it had when it was recorded."""

    replay: Callable[[], None]
    results: list[Tensor]
    pool: Any
    """Memory that it works in."""


Call = Callable[[], list[Tensor]]


@cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    # cuBLAS has a workspace for each stream, which is never freed: about 64 MiB on Hopper
    # (pytorch 99196).
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def record_graph(call: Call, device: torch.device, pool: Any) -> Recorded:
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
            results = call()
    torch.cuda.current_stream(device).wait_stream(stream)
    return Recorded(graph.replay, results, pool or graph.pool())


RECORDERS: dict[str, Callable[[Call, torch.device, Any], Recorded]] = {"cuda": record_graph}
"""What records a call on each type of device; on the others nothing is recorded."""


class Recording(NamedTuple):
    """A recorded step, and what it reads."""

    recorded: Recorded
    """Its results are the sum of losses and the gradients."""
    inputs: list[list[Tensor]]
    trained: list[nn.Parameter]


class Parts(NamedTuple):
    """A step as it is launched, operation by operation."""

    add_gradients: Callable[[Iterable[Batch]], Tensor]
    """Leaves the gradients of micro-batches at the parameters; returns their sum of losses."""
    update: Callable[[], None]


# On a fast GPU a small network's step is bound by the host, which launches hundreds of short
# kernels one by one. Recorded as a CUDA graph, they are launched together, with the same results.
class RecordedStep:
    """Records a step of each kind in one graph: images are made, gradients computed, weights moved.

    The last is left to the host where the optimizer's steps are not all alike.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        *,
        device: torch.device,
        with_update: bool,
    ) -> None:
        """Records nothing yet: the first step of a kind does."""
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self._device, self.with_update = device, with_update
        self._recordings: dict[Any, Recording] = {}
        # Memory of the first recording; the others share it, as no two of them run at once.
        self._pool: Any = None

    def take(self, batches: Iterable[Batch], kind: Hashable, parts: Parts) -> Tensor:
        """Takes a step like others of its `kind`; its sum of losses is valid until the next."""
        first = next(arriving := iter(batches))
        key, batches = (kind, made_from(first)[0]), chain([first], arriving)
        if key in self._recordings:
            for held, batch in zip(self._recordings[key].inputs, batches, strict=True):
                for tensor, new in zip(held, made_from(batch)[1], strict=True):
                    tensor.copy_(new)
        elif len(self._recordings) < MOST_KINDS:
            self._recordings[key] = self._record(batches, parts)
        else:
            loss_sum = parts.add_gradients(batches)
            self._finish(parts)
            return loss_sum
        return self._replayed(self._recordings[key], parts)

    def prepare(self, batches: Sequence[Batch], kind: Hashable, parts: Parts) -> None:
        key = (kind, made_from(batches[0])[0])
        if key not in self._recordings and len(self._recordings) < MOST_KINDS:
            self._recordings[key] = self._record(batches, parts)

    def replay(self, recording: Recording) -> None:
        recording.recorded.replay()

    def _replayed(self, recording: Recording, parts: Parts) -> Tensor:
        self.replay(recording)
        loss_sum, *gradients = recording.recorded.results
        if not self.with_update:
            for parameter, gradient in zip(recording.trained, gradients, strict=True):
                parameter.grad = gradient
            self._finish(parts)
        return loss_sum

    def _finish(self, parts: Parts) -> None:
        parts.update()
        self._model.zero_grad(set_to_none=True)

    def _record(self, batches: Iterable[Batch], parts: Parts) -> Recording:
        """Leaves all as it was: weights, statistics, optimizer, loss scale and random numbers.

        Raises: RuntimeError if the recorded gradients are all zero, or no numbers.
        """
        # A batch may be valid until the next one only.
        static = [(make, [t.clone() for t in inputs]) for make, inputs in map(made_from, batches)]
        rates = _tensor_rates(self._optimizer, self._device) if self.with_update else []
        # The first call makes the scale, which must not be recorded.
        self._scaler.scale(torch.zeros((), device=self._device))
        changed = [*rates, *self._tensors()]
        restore, known = remembered(changed), {id(each) for each in changed}
        # Some steps on the same images at full rate can end in no numbers.
        for rate in rates:
            rate.zero_()
        trained: list[nn.Parameter] = []

        def once() -> list[Tensor]:
            loss_sum = parts.add_gradients(make(*tensors) for make, tensors in static)
            trained[:] = [p for p in self._model.parameters() if p.grad is not None]
            gradients = [p.grad for p in trained if p.grad is not None]
            if self.with_update:
                parts.update()
            # So that the next gradients are no sum with these.
            self._model.zero_grad(set_to_none=True)
            return [loss_sum, *gradients]

        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            recorded = RECORDERS[self._device.type](once, self._device, self._pool)
            self._refuse_nonsense(recorded)
        self._pool = recorded.pool
        # What the optimizer has made for the first gradients begins at zero.
        with torch.no_grad():
            for each in self._tensors():
                if id(each) not in known:
                    each.zero_()
        restore()
        return Recording(recorded, [tensors for _, tensors in static], trained)

    def _tensors(self) -> list[Tensor]:
        found: list[Any] = [*self._model.parameters(), *self._model.buffers()]
        if self.with_update:
            found += chain.from_iterable(each.values() for each in self._optimizer.state.values())
            if self._scaler.is_enabled():
                found += [self._scaler._scale, self._scaler._growth_tracker]
        return [tensor for tensor in found if isinstance(tensor, Tensor)]

    def _refuse_nonsense(self, recorded: Recorded) -> None:
        # A graph that was recorded on another device or stream than its work is empty.
        gradients = [gradient for gradient in recorded.results[1:] if gradient.numel()]
        torch._foreach_zero_(gradients)
        recorded.replay()
        largest = float(torch.stack([g.abs().amax().float() for g in gradients]).max())
        # Under a loss scale the first gradients may overflow, which lowers it.
        if largest > 0 and (math.isfinite(largest) or self._scaler.is_enabled()):
            return
        raise RuntimeError(
            f"a recorded step must have gradients, but the largest of them is {largest:g}."
            " Try cuda_graph: false."
        )


def _tensor_rates(optimizer: torch.optim.Optimizer, device: torch.device) -> list[Tensor]:
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(group["lr"], dtype=torch.float32, device=device)
        if "capturable" in group and device.type == "cuda":
            group["capturable"] = True
    return [group["lr"] for group in optimizer.param_groups]
