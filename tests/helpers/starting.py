"""What weights are derived from, for tests: data in memory and a recorded training."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from tune_speed.components.speedups.base import Start

CPU = torch.device("cpu")
Batch = tuple[Tensor, Tensor]


def make_start(
    images: Tensor,
    labels: Tensor | None = None,
    *,
    batch_size: int = 16,
    num_classes: int = 10,
    fit: Callable[[nn.Module, Iterator[Batch], int], None] | None = None,
) -> Start:
    """Returns the start of a run on `images` (N, C, H, W), in another order each epoch."""
    if labels is None:
        labels = torch.arange(len(images)) % num_classes

    def batches(epoch: int) -> Iterator[Batch]:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(batch_size):
            yield images[chosen], labels[chosen]

    def refuse(model: nn.Module, batches: Iterator[Batch], num_steps: int) -> None:
        raise AssertionError("nothing is to be trained")

    return Start(
        batches,
        lambda share, passes: batches(0),
        len(images),
        num_classes,
        batch_size,
        CPU,
        0,
        fit or refuse,
    )
