"""How YellowFin derives rate and momentum from the gradients it has seen.

All values are tensors of shape `()` in float64 on the weights' device, so that no step waits for
it. Symbols: g the whole gradient, n = ||g||^2, t the step from 0, z = 1 - beta^(t+1), E[.] a
running mean with factor beta that starts at 0, h curvature, C variance, D distance.

Source: Zhang and Mitliagkas, arXiv 1706.03471, algorithms 1 to 4; JianGoForIt/YellowFin_Pytorch.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

EPS = 1e-6
"""The reference code's, against logarithms and quotients of 0."""
LEAST_P = 1e-18
"""Keeps the momentum below 1 where gradients vanish."""

Record = dict[str, Any]
"""What the tuner remembers; plain values and tensors, so that a checkpoint can hold it."""


class Landscape(NamedTuple):
    """What the gradients say about the loss."""

    curvature_min: Tensor
    curvature_max: Tensor
    variance: Tensor
    distance: Tensor


def new_record(*, window: int, device: torch.device) -> Record:
    """Returns the memory before the first step, for extremes over the last `window` steps."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=device)

    names = ("distance", "curvature_max", "momentum", "target", "correction", "rate")
    return {
        "num_steps": 0,
        "squared_norms": zeros(window),
        "averages": zeros(4),
        **{name: zeros() for name in names},
    }


def observe(
    record: Record, *, squared_norm: Tensor, squared_average: Tensor, beta: float
) -> Landscape:
    """Takes the gradient of one step into `record` and returns the landscape as it looks now.

    l, h = least and largest n of the window; h_min, h_max = exp(E[log(l, h + EPS)] / z);
    C = max(E[n]/z - ||E[g]/z||^2, EPS); D = E[E[||g||] / (E[n] + EPS)] / z.

    Args:
        record: changed in place.
        squared_norm: n.
        squared_average: ||E[g]||^2.
        beta: factor of the running means.
    """
    t, squared_norms, averages = record["num_steps"], record["squared_norms"], record["averages"]
    squared_norms[t % len(squared_norms)] = squared_norm
    seen = squared_norms[: t + 1]
    logs = (torch.stack(seen.aminmax()) + EPS).log()
    now = torch.cat((logs, torch.stack((squared_norm, squared_norm.sqrt()))))
    averages.lerp_(now, 1 - beta)
    _, _, mean_square, mean_norm = averages
    record["distance"].lerp_(mean_norm / (mean_square + EPS), 1 - beta)
    record["num_steps"] = t + 1
    debias = 1 - beta ** (t + 1)
    curvature_min, curvature_max = (averages[:2] / debias).exp()
    variance = (mean_square / debias - squared_average / debias**2).clamp(min=EPS)
    record["curvature_max"] = curvature_max
    return Landscape(curvature_min, curvature_max, variance, record["distance"] / debias)


def one_minus_root(p: Tensor) -> Tensor:
    """Returns s in (0, 1) with p * (1 - s) = s^3, for p > 0; 1 - s is the root of the momentum.

    Deviation: by the hyperbolic sine instead of Vieta's substitution, which is a difference of
    large numbers and loses digits from p = 1e5 on.
    """
    return 2 * (p / 3).sqrt() * torch.sinh(torch.asinh(1.5 * (3 / p).sqrt()) / 3)


def single_step(landscape: Landscape) -> tuple[Tensor, Tensor]:
    """Returns the momentum m and rate a that minimise m D^2 + a^2 C.

    With x = sqrt m, subject to a = (1 - x)^2 / h_min and x >= (sqrt r - 1) / (sqrt r + 1), where
    r = h_max / h_min. The free minimum is where p x = (1 - x)^3, p = D^2 h_min^2 / (2 C).
    """
    low, high, variance, distance = landscape
    p = ((distance * low).square() / (2 * variance)).clamp(min=LEAST_P)
    s = one_minus_root(p)
    root_r = (high / low).sqrt()
    # x as s^3 / p keeps all digits where 1 - s would not: for large p.
    x = torch.maximum(s**3 / p, (root_r - 1) / (root_r + 1))
    return x.square(), (1 - x).square() / low
