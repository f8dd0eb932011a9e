"""The theory of boosting a residual network, as functions of numbers.

| symbol | meaning                                                                           |
|--------|-----------------------------------------------------------------------------------|
| t      | 0, 1, …, T: blocks that have been trained; T of them make the network             |
| o_t    | hypothesis of the first t blocks: |o| ≤ 1; o_0 = 0                                |
| α_t    | its weight; α_0 = 0                                                               |
| h_t    | weak module α_{t+1} o_{t+1} − α_t o_t: what block t adds                          |
| D_t    | weights of the samples, D_{t+1} ∝ D_t exp(−y h_t)                                 |
| γ̃_t    | edge of o_t: E_D[y o_t] for labels y = ±1                                         |
| γ_t    | what block t adds to the edge, sqrt((γ̃²_{t+1} − γ̃²_t) / (1 − γ̃²_t))               |
| s      | scores α_t o_t of samples and classes (N, K)                                      |
| C      | cost of putting probability on a class (N, K): its rows sum to 0                  |

The weak modules telescope: Σ_{t<T} h_t = α_T o_T, so the boosted sum is the residual network.
Where every γ_t ≥ γ, at most exp(−T γ² / 2) of the training samples are misclassified.

Source: Huang, Ash, Langford, Schapire, "Learning Deep ResNet Blocks Sequentially using Boosting
Theory", arXiv 1706.04964; for K classes the bookkeeping of AdaBoost.MM, as their code has it.
Deviations from that code: scores telescope (there, the last hypothesis is never taken off again),
and γ̃_0 is 0, as o_0 = 0 implies, not 0.5.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Weak(NamedTuple):
    """What one stage of boosting has come to."""

    edge: float
    """γ̃_{t+1}, in [-1, 1]."""
    added_edge: float
    """γ_t; negative where the block made things worse."""
    alpha: float
    """α_{t+1}."""


def binary_edge(weights: Array, labels: Array, outputs: Array) -> float:
    """Returns the edge γ̃ = E_D[y · o] of outputs (N,) in [-1, 1] on labels (N,) of ±1."""
    return float(np.average(labels * outputs, weights=weights))


def added_edge(before: float, after: float) -> float:
    """Returns γ_t for γ̃_t and γ̃_{t+1}; where the edge fell, minus the root of what it fell by."""
    gain = (after**2 - before**2) / (1 - before**2)
    return math.copysign(math.sqrt(abs(gain)), gain)


def weight_of(edge: float) -> float:
    """Returns α = ½ ln((1 + γ̃) / (1 − γ̃)), for an edge within (-1, 1)."""
    return math.atanh(edge)


def weak_modules(outputs: Sequence[Array], alphas: Sequence[float]) -> list[Array]:
    """Returns h_0, h_1, … for o_1, o_2, … and α_1, α_2, …, with o_0 = 0 and α_0 = 0."""
    scores = [alpha * output for alpha, output in zip(alphas, outputs, strict=True)]
    before = [np.zeros_like(scores[0]), *scores[:-1]]
    return [score - previous for score, previous in zip(scores, before, strict=True)]


def reweighted(weights: Array, labels: Array, weak_module: Array) -> Array:
    """Returns D_{t+1} ∝ D_t exp(−y h_t), of sum 1, for D_t (N,), labels ±1 (N,) and h_t (N,)."""
    raised = weights * np.exp(-labels * weak_module)
    return np.asarray(raised / raised.sum())


def costs(scores: Array, labels: NDArray[np.int64]) -> Array:
    """Returns C (N, K) of scores (N, K) and classes (N,).

    C(i, l) = exp(s(i, l) − s(i, y_i)) for wrong classes l; the right one's is minus their sum.
    """
    rows = np.arange(len(labels))
    cost = np.exp(scores - scores[rows, labels][:, None])
    cost[rows, labels] = 0.0
    cost[rows, labels] = -cost.sum(axis=1)
    return cost


def multiclass_edge(cost: Array, outputs: Array) -> float:
    """Returns γ̃ = −Σ C ∘ o / Σ_{wrong classes} C for outputs (N, K) with |o| ≤ 1."""
    return float(-(cost * outputs).sum() / cost[cost > 0].sum())


def follow(outputs: Sequence[Array], labels: NDArray[np.int64]) -> list[Weak]:
    """Returns the edges and weights of hypotheses o_1, o_2, … (N, K), one after the other."""
    scores, before, stages = np.zeros_like(outputs[0]), 0.0, list[Weak]()
    for output in outputs:
        edge = multiclass_edge(costs(scores, labels), output)
        stages.append(Weak(edge, added_edge(before, edge), weight_of(edge)))
        scores, before = stages[-1].alpha * output, edge
    return stages


def error_bound(num_blocks: int, gamma: float) -> float:
    """Returns exp(−T γ² / 2): at most this share of the training samples is misclassified."""
    return math.exp(-num_blocks * gamma**2 / 2)
