"""How many trials at a time finish most trials an hour, from how much they slow each other down.

| symbol | meaning                                                    |
|--------|------------------------------------------------------------|
| T(k)   | time of a trial while k of them run at once                |
| s(k)   | slow-down, T(k) / T(1)                                     |
| r(k)   | optimizer steps a second of all k together                 |
| g(k)   | gain: trials an hour with k at once over those with one    |

    g(k) = (k / T(k)) / (1 / T(1)) = k / s(k) = r(k) / r(1)

Neither whether a trial reaches the target nor its time to target (steps times isolated step time)
changes with its neighbours, so the k with the most trials an hour has the most that reach it. More
at once cost knowledge: each is proposed before the others' outcomes are known. So of the k within
`LEAST_GAIN` of the best, the smallest is taken.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

from pydantic import Field

from tune_speed.core.config import Config

LEAST_GAIN = 0.03
"""More trials at a time must finish so many more an hour to be worth it."""
# How often k at once and one alone are measured, in turns.
PAIRS = 3
# Steps are counted for so long [s], or longer where a step is long.
WINDOW_S = 0.4
STEPS_PER_WINDOW = 3
LONGEST_WINDOW_S = 10.0
MEMORY_FRAC = 0.9
"""Share of a device's memory that trials may fill together."""


class WorkerPool(Protocol):
    """Processes that take steps of a recipe, on one device or node."""

    def grow(self, count: int) -> bool:
        """Starts processes up to `count`; returns whether all run."""

    def step_s(self) -> float:
        """Returns about how long a step takes the first of them, alone [s]."""

    def rates(self, count: int, *, window_s: float) -> Sequence[float]:
        """Returns steps a second of each of the first `count`, all running at the same time."""

    def memory_frac(self) -> float:
        """Returns the largest share of the device's memory that one of them has needed."""


class Packing(Config):
    """How many trials run at a time, and the measurement behind it."""

    concurrent: Annotated[int, Field(gt=0)]
    """Trials at the same time, on all devices together."""
    at_once: Annotated[int, Field(gt=0)]
    """Of these on one GPU, or on one node of CPUs."""
    gains: dict[int, float] = Field(default={})
    """g(k) by k; empty where nothing was measured."""
    sharing: str = ""
    """How a GPU is shared, such as `time slicing`; empty for CPUs."""
    note: str = ""
    """Why no more were tried, or why nothing was measured; may be empty."""
    gpu: Annotated[float, Field(ge=0)] = 0.0
    """Share of a GPU that a trial gets."""
    asked: dict[str, str] = Field(default={})
    """Resources and nodes for which the choice holds."""

    def line(self) -> str:
        """Returns the choice for people: `2 at a time: 1.93 × the trials an hour of one; …`."""
        chosen = f"{self.concurrent} at a time"
        if self.concurrent != self.at_once:
            chosen += f", {self.at_once} on each {'GPU' if self.gpu else 'node'}"
        gain = self.gains.get(self.at_once)
        if gain is not None and self.at_once > 1:
            chosen += f": {gain:.2f} × the trials an hour of one"
        tried = {k: g for k, g in self.gains.items() if k not in (1, self.at_once)}
        others = [f"{k}: {gain:.2f} ×" for k, gain in tried.items()]
        return "; ".join(filter(None, [chosen, *others, self.sharing, self.note]))


def sizes(most: int) -> list[int]:
    """Returns the k to try: 1, 2, 3, 4, 6, 8, 12, 16 … and `most`."""
    steps = {1 << power for power in range(most.bit_length())}
    steps |= {3 << power for power in range(most.bit_length())}
    return sorted({size for size in steps if size <= most} | {most})


def measure(pool: WorkerPool, *, most: int) -> tuple[dict[int, float], str]:
    """Returns the gain g(k) of each k that was tried, and why no larger one was; may be empty.

    Each k is measured in turns with one alone, as machines drift, and the median of the ratios is
    taken. Ends where two sizes in a row are worse than the best, where a process does not start,
    or before memory would be full.
    """
    gains = {1: 1.0}
    pool.grow(1)
    window_s = min(max(WINDOW_S, STEPS_PER_WINDOW * pool.step_s()), LONGEST_WINDOW_S)
    for size in sizes(most)[1:]:
        if size * pool.memory_frac() > MEMORY_FRAC:
            return gains, f"{size} would fill the memory"
        if not pool.grow(size):
            return gains, f"{size} did not start"
        ratios = []
        for _ in range(PAIRS):
            alone = sum(pool.rates(1, window_s=window_s))
            ratios.append(sum(pool.rates(size, window_s=window_s)) / alone)
        gains[size] = statistics.median(ratios)
        # Two in a row: another process may have disturbed a single one.
        if max(list(gains.values())[-2:]) * (1 + LEAST_GAIN) < max(gains.values()):
            return gains, ""
    return gains, ""


def best(gains: Mapping[int, float]) -> int:
    """Returns the smallest k whose gain is within `LEAST_GAIN` of the largest."""
    enough = max(gains.values()) / (1 + LEAST_GAIN)
    return min(k for k, gain in gains.items() if gain >= enough)
