"""Drawing samples by their place in a batch."""

import torch
from torch import Tensor


def draw_by_rank(losses: Tensor, count: int, *, power: float) -> Tensor:
    """Returns the indices of `count` different samples, (count,), those with large losses mostly.

    The sample with the i-th smallest of N losses has the weight ((i + 1/2) / N)^power; a power of 0
    draws evenly. The host does not wait for the device.
    """
    # Drawing without replacement is a race: each sample's time is exponential with its weight as
    # rate, and the first ones in are drawn.
    order = losses.argsort()
    places = torch.arange(len(losses), device=losses.device, dtype=torch.float32) + 0.5
    weights = (places / len(losses)) ** power
    times = torch.empty_like(weights).exponential_() / weights
    return order[times.topk(count, largest=False).indices]
