"""A step of about a millisecond that is the same for all recipes: how fast a machine is right now.

On a shared virtual machine windows of half a second of one kind of step spread by 13 %; divided by
the reference steps beside them, by 4 %. Short steps, taken often, see more of the drift.
"""

import time
from collections.abc import Callable

import torch
from torch.backends import cudnn
from torch.nn import functional

CHANNELS, SIZE = 32, 16
LAYERS = {"cpu": 2, "cuda": 16}
"""A GPU needs more of them for a millisecond."""
CUDA_BATCH = 16
"""Images of a step on a GPU; on a CPU as many as threads."""
SHARE = 0.1
"""Of the time of a window that goes to reference steps."""
COLD, TIMED = 3, 3
"""Steps in a row of which nothing is told, and those that are. The first step after others finds
the caches full of theirs: it took 1.3 to 1.45 times as long as the tenth, the third 1.01 to 1.04,
the fourth 1.00 to 1.02. Told, that makes large networks look faster than small ones."""


class ReferenceStep:
    """Forward and backward of a few convolutions on (N, 32, 16, 16), in fp32, on one device."""

    def __init__(
        self,
        device: torch.device,
        *,
        synchronize: Callable[[], None],
        delayed_s: Callable[[], float] = lambda: 0.0,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Takes one step, which chooses kernels; what `delayed_s` returns does not count."""
        batch = CUDA_BATCH if device.type == "cuda" else torch.get_num_threads()
        shape = (batch, CHANNELS, SIZE, SIZE)
        # Not the global generator, which seeds of trials set.
        random = torch.Generator().manual_seed(0)
        self._images = torch.randn(shape, generator=random).to(device)
        weight = torch.randn(CHANNELS, CHANNELS, 3, 3, generator=random) / (3 * CHANNELS**0.5)
        self._weights = [weight.to(device).requires_grad_() for _ in range(LAYERS[device.type])]
        self._synchronize, self._delayed_s, self._now = synchronize, delayed_s, now
        self.times_s: list[float] = []
        """Of this window's steps [s], without the cold ones."""
        self._began_s, self._spent_s = now(), 0.0
        self._take()

    def begin(self) -> None:
        self.times_s, self._began_s, self._spent_s = [], self._now(), 0.0
        self._take_row()

    def catch_up(self) -> None:
        """Takes what steps are due; the device must have done what was queued before."""
        while self._spent_s < SHARE * (self._now() - self._began_s):
            self._take_row()

    def _take_row(self) -> None:
        # Waits for a core count here: without them one that gets few would never have caught up.
        began_s = self._now()
        self.times_s += [self._take() for _ in range(COLD + TIMED)][COLD:]
        self._spent_s += self._now() - began_s

    def _take(self) -> float:
        delay_s, began_s = self._delayed_s(), self._now()
        # Whatever kernels the recipe at hand asks for.
        with (
            torch.enable_grad(),
            torch.autocast(self._images.device.type, enabled=False),
            cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
        ):
            images = self._images
            for weight in self._weights:
                images = functional.relu(functional.conv2d(images, weight, padding=1))
            torch.autograd.grad(images.mean(), self._weights)
        self._synchronize()
        took_s = self._now() - began_s
        return max(0.0, took_s - self._delayed_s() + delay_s)
