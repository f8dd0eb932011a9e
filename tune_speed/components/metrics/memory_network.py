"""S0's "memory" equations 5 to 7: no effect on training.

They describe a network with a memory of vectors m_i, not page-locked RAM, under whose heading they
stand; neither S0's text nor its authors' code uses them. Here as pure functions, so that nobody
has to wonder what they would give.

| symbol   | meaning                                                |
|----------|--------------------------------------------------------|
| α_i, β   | attention weight of a slot, price of a pinned one      |
| P_i      | pin status of slot i, 0 or 1                           |
| γ, δ     | worth of being pinned, price of a change               |
| ρ, η, ξ  | forgetting factor, weight of h_t, weight of ∇L         |
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tune_speed.components.metrics.base import Metric

Vector = NDArray[np.float64]
NO_EFFECT = "no effect on training"


def allocated_memory(
    similarities: NDArray[np.float64],
    pinned: NDArray[np.float64],
    *,
    alpha: Vector,
    beta: float,
) -> int:
    """Returns which candidate memory M has the largest Σ_i (α_i Sim(h_t, m_i) - β P_i).

    Args:
        similarities: Sim(h_t, m_i) of each candidate's slots, (M, N); S0 leaves Sim open.
        pinned: P_i of each candidate's slots, (M, N).
        alpha: (N,).
        beta: price of a pinned slot.

    Source: S0, equation 5.
    """
    return int(np.argmax((alpha * similarities - beta * pinned).sum(axis=1)))


def pin_score(pinned: Sequence[float], *, gamma: float, delta: float) -> float:
    """Returns (1/T) Σ_{t=1..T} (γ P^t - δ |P^t - P^{t-1}|).

    Args:
        pinned: P^0, …, P^T, at least two.
        gamma: worth of being pinned.
        delta: price of a change.

    Source: S0, equation 6.
    """
    steps = pairwise(pinned)
    return sum(gamma * now - delta * abs(now - before) for before, now in steps) / (len(pinned) - 1)


def updated_memory(
    memory: Vector,
    hidden: Vector,
    gradient: Vector,
    *,
    pinned: float,
    rho: float,
    eta: float,
    xi: float,
) -> Vector:
    """Returns ρ m + (1 - ρ)(η h + ξ P ∇L), (D,), from m, h and ∇L, (D,) each.

    Source: S0, equation 7.
    """
    return rho * memory + (1 - rho) * (eta * hidden + xi * pinned * gradient)


MEMORY_NETWORK = {
    "allocated_memory": Metric(
        about=f"S0's dynamic allocation of a memory network, {NO_EFFECT}: `allocated_memory`.",
        unit="index",
        source="S0, equation 5",
    ),
    "pin_score": Metric(
        about=f"S0's score of pinning a memory network's slot, {NO_EFFECT}: `pin_score`.",
        unit="1",
        source="S0, equation 6",
    ),
    "updated_memory": Metric(
        about=f"S0's update of a memory network's slot, {NO_EFFECT}: `updated_memory`.",
        unit="that of the slot",
        source="S0, equation 7",
    ),
}
