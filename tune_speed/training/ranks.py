"""Several devices that train one model: who takes what, and what they exchange.

Each device has a process of its own, its rank. Rank 0 evaluates and decides; the others
follow. Every wait for another rank ends after `WAIT_S`, or at once where its process has died
(gloo) or the run's supervisor ends them all (see `distributed`).

| what                        | how                                   | when                  |
|-----------------------------|---------------------------------------|-----------------------|
| gradients                   | averaged by `DistributedDataParallel` | once a step           |
| weights derived from data   | rank 0's                              | before the first step |
| how long a step takes       | rank 0's, by `JointClock`             | before the first step |
| whether time is over        | rank 0's flag, a step late, async     | each step             |
| training loss               | summed                                | each evaluation       |
| evaluation, decision        | rank 0's                              | each evaluation       |
| what only a rank has        | gathered, in rank 0's checkpoint      | each checkpoint       |
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from inspect import signature
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tune_speed.data.orders import Share
from tune_speed.runtime.turnstile import Measurement, Turnstile

# Rank 0 may evaluate, or be paused, for so long.
WAIT_S = 1800.0
SEED_STRIDE = 1_000_003
"""Between the seeds of two ranks' dropout."""
# Its name since torch 2.13 or so, which warns of the older one.
_BUFFERS_OPTION = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)

Forward = Callable[[Tensor], Tensor]
Shared = TypeVar("Shared")


@dataclass
class Ranks:
    """A process's place among those that train one model; by default it is alone."""

    rank: int = 0
    size: int = 1
    _control: "dist.ProcessGroup | None" = None
    """On the host, apart from the gradients', so that neither waits for the other's device."""
    _pending: "tuple[dist.Work, Tensor] | None" = field(default=None, init=False)

    @classmethod
    @contextmanager
    def joined(
        cls, *, rank: int, size: int, backend: str, init_method: str, wait_s: float = WAIT_S
    ) -> Iterator[Self]:
        """Meets the other ranks, and leaves them when the block ends.

        `backend` is that of the gradients: `nccl` where each rank has a GPU, otherwise `gloo`;
        `init_method` is torch's; `wait_s` is the longest wait for another [s].
        """
        timeout = timedelta(seconds=wait_s)
        dist.init_process_group(
            backend, init_method=init_method, rank=rank, world_size=size, timeout=timeout
        )
        try:
            yield cls.here(wait_s=wait_s)
        finally:
            dist.destroy_process_group()

    @classmethod
    def here(cls, *, wait_s: float = WAIT_S) -> Self:
        """Returns the place in torch's process group, which others have set up."""
        words = dist.new_group(backend="gloo", timeout=timedelta(seconds=wait_s))
        assert isinstance(words, dist.ProcessGroup), "every rank is in it"
        return cls(dist.get_rank(), dist.get_world_size(), words)

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that evaluates and decides."""
        return self.rank == 0

    def share(self, samples_per_step: int, *, together: int = 1) -> Share:
        return Share(self.rank, self.size, samples_per_step, together)

    def seed(self, seed: int) -> None:
        """Gives each rank random numbers of its own, once all have the same weights."""
        if not self.is_first:
            torch.manual_seed(seed + SEED_STRIDE * self.rank)

    def wrap(self, forward: Forward, *, may_skip: bool) -> Forward:
        """Returns the model with gradients averaged over ranks; parameters `may_skip` a step."""
        if self.size == 1:
            return forward
        averaging: Any = partial(DistributedDataParallel, find_unused_parameters=may_skip)
        wrapped: Forward = averaging(forward, **{_BUFFERS_OPTION: False})
        return wrapped

    def syncing(self, forward: Forward, *, is_last: bool) -> AbstractContextManager[None]:
        """Returns the block of one micro-batch; ranks average in the last one of a step alone."""
        if is_last or not isinstance(forward, DistributedDataParallel):
            return nullcontext()
        return forward.no_sync()

    def align(self, model: nn.Module) -> None:
        """Gives all ranks rank 0's weights and batch statistics."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)

    def sum(self, value: Tensor) -> Tensor:
        if self.size == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def broadcast(self, value: Shared) -> Shared:
        """Returns rank 0's value; those of the others are dropped."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        first: Shared = box[0]
        return first

    def gather(self, value: Shared) -> list[Shared]:
        """Returns every rank's value, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._control)
        return values

    def lately(self, flag: bool) -> bool:
        """Returns rank 0's flag of the call before, the same on all ranks; at first False."""
        if self.size == 1:
            return flag
        # No rank waits for another: the broadcast runs during the step between two calls.
        before, word = self._pending, torch.tensor([flag], dtype=torch.uint8)
        work = dist.broadcast(word, src=0, group=self._control, async_op=True)
        assert work is not None
        self._pending = work, word
        if before is None:
            return False
        before[0].wait()
        return bool(before[1].item())


ALONE = Ranks()


class JointTurn:
    """A turn on all devices. All ranks look at it equally often."""

    def __init__(self, ranks: Ranks, own: Measurement | None) -> None:
        self._ranks, self._own = ranks, own

    @property
    def left_s(self) -> float:
        return min(self._ranks.gather(math.inf if self._own is None else self._own.left_s))

    @property
    def is_isolated(self) -> bool:
        return all(self._ranks.gather(self._own is None or self._own.is_isolated))


class JointTurnstile:
    """The turnstiles of all ranks' devices, each held by the first of its ranks."""

    def __init__(self, ranks: Ranks, own: Turnstile, *, device_key: str) -> None:
        self._ranks, self._own = ranks, own
        self.longest_pause_s = ranks.broadcast(own.longest_pause_s)
        keys = ranks.gather(device_key)
        # In an order that all trials have, so that no two wait for each other.
        self._holders = [keys.index(key) for key in sorted(set(keys))]

    @contextmanager
    def measuring(self, *, patience_s: float, needs_s: float) -> Iterator[JointTurn | None]:
        """Yields once all others are paused on all devices, or None if that took too long.

        Who is paused on the first device waits for the others' turns too, hence longer than usual.
        """
        needs_s = max(needs_s, self.longest_pause_s / 2)
        own: Measurement | None = None
        with ExitStack() as stack:
            for holder in self._holders:
                if holder == self._ranks.rank:
                    turn = self._own.measuring(patience_s=patience_s, needs_s=needs_s)
                    own = stack.enter_context(turn)
                left_s = self._ranks.gather(None if own is None else own.left_s)[holder]
                if left_s is None:
                    yield None
                    return
                patience_s = max(0.0, min(patience_s, left_s - needs_s))
            yield JointTurn(self._ranks, own)


class JointClock:
    """Rank 0's seconds when all ranks have come, without those that it takes to tell them."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._told_s = ranks, 0.0

    def now(self) -> float:
        """Returns the same on all ranks, which all call this."""
        self._ranks.gather(None)
        began_s = time.perf_counter()
        now_s = self._ranks.broadcast(began_s - self._told_s)
        self._told_s += time.perf_counter() - began_s
        return now_s
