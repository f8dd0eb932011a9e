"""A step of a few milliseconds that is the same for all recipes: how fast a machine is right now.

A machine drifts: its clock, its neighbours on the same host. On a shared virtual machine windows
of one kind of step, taken over four minutes, spread by 17 %; divided by the reference step beside
them, those of convolutional networks by 3 %.
"""

import time
from collections.abc import Callable

import torch
from torch.backends import cudnn
from torch.nn import functional

BATCH, CHANNELS, SIZE = 16, 32, 16
LAYERS = {"cpu": 2, "cuda": 16}
"""A GPU needs more of them for a millisecond."""
SHARE = 0.1
"""Of the time of a window that goes to reference steps."""
COLD, TIMED = 2, 3
"""Steps in a row of which nothing is told, and those that are. The first step after others finds
the caches full of theirs: it took 1.84 times as long after 19 layers and 1.20 times after a
small network (4), the third 1.06 and 1.03. Told, that made the one look faster than the other."""


class ReferenceStep:
    """Forward and backward of a few convolutions on (16, 32, 16, 16), in fp32, on one device."""

    def __init__(
        self,
        device: torch.device,
        *,
        synchronize: Callable[[], None],
        delayed_s: Callable[[], float] = lambda: 0.0,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Takes one step, which chooses kernels.

        `delayed_s` returns how long this thread has waited for a core, which does not count.
        """
        shape = (BATCH, CHANNELS, SIZE, SIZE)
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
        """Begins a window, with a few steps."""
        self.times_s, self._began_s, self._spent_s = [], self._now(), 0.0
        self._take_row()

    def catch_up(self) -> None:
        """Takes what steps are due; the device must have done what was queued before."""
        while self._spent_s < SHARE * (self._now() - self._began_s):
            self._take_row()

    def _take_row(self) -> None:
        took_s = [self._take() for _ in range(COLD + TIMED)]
        self.times_s += took_s[COLD:]
        self._spent_s += sum(took_s)

    def _take(self) -> float:
        """Returns how long one step took [s]."""
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
