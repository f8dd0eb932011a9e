"""Steps of a recipe on several devices, timed while the co-tenants of all of them are paused.

All ranks take the same steps, since whatever decides how many is the same for all of them.
"""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tune_speed.runtime.turnstile import Measurement, Turnstile
from tune_speed.training.ranks import Ranks


class JointTurn:
    """A turn on all devices. All ranks look at it equally often."""

    def __init__(self, ranks: Ranks, own: Measurement | None) -> None:
        self._ranks, self._own = ranks, own

    @property
    def left_s(self) -> float:
        """Seconds until others continue on some device."""
        return min(self._ranks.gather(math.inf if self._own is None else self._own.left_s))

    @property
    def is_isolated(self) -> bool:
        """Whether all who take part were paused on all devices."""
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
