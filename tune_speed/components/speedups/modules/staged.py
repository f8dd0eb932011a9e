"""A residual network of which one stage at a time is trained, the earlier ones being frozen."""

from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeGuard, cast

import torch
from torch import Tensor, nn

from tune_speed.components.speedups.modules.heads import heads_of
from tune_speed.components.speedups.modules.residual import parts_of


class StagedNet(Protocol):
    """A residual network by its parts: logits = head(blocks(stem(images))).

    Modules that it registers before `blocks` belong to the stem, those after it to the head.
    """

    blocks: nn.Sequential

    def stem(self, images: Tensor) -> Tensor:
        """Returns the features (N, C, H, W) that the first block takes."""

    def head(self, features: Tensor) -> Tensor:
        """Returns the logits (N, K) of what the last block gives."""

    def children(self) -> Iterator[nn.Module]:
        """Yields the modules that the network consists of."""


def is_staged_net(model: Any) -> TypeGuard[StagedNet]:
    """Returns whether a network has the parts, and its blocks are residual."""
    has_ends = all(callable(getattr(model, name, None)) for name in ("stem", "head"))
    blocks = getattr(model, "blocks", None)
    if not has_ends or not isinstance(blocks, nn.Sequential):
        return False
    return all(parts_of(block) is not None for block in blocks)


class Place:
    """The stage that a network is in."""

    def __init__(self) -> None:
        self.stage = 0

    # A copy of the network refers to the same place: averaged weights are evaluated at the stage
    # that those in training have reached.
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Staged(nn.Module):
    """Images (N, C, H, W) to the logits (N, K) of the stage's head.

    In stage 0…num_stages − 1 the blocks of that stage and its head are trained, and those after it
    do not run; in stage `num_stages` the whole network is.
    """

    def __init__(self, net: StagedNet, *, num_stages: int, num_classes: int) -> None:
        super().__init__()
        self.net = net
        self.num_stages = num_stages
        self.place = Place()
        lasts = [self._bounds(stage)[1] - 1 for stage in range(num_stages - 1)]
        self.heads = nn.ModuleList(
            nn.Linear(num_channels(net.blocks[last]), num_classes) for last in lasts
        )

    def get_classifier(self) -> tuple[nn.Module, ...]:
        """Returns the network's own head and the auxiliary ones."""
        own = (layer for _, layer in heads_of(cast(nn.Module, self.net)))
        return (*own, *self.heads)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits of the stage's head."""
        stage = self.place.stage
        if stage == self.num_stages:
            return self.net.head(self.net.blocks(self.net.stem(images)))
        first, last = self._bounds(stage)
        # Frozen blocks store no activations for a backward pass.
        with torch.set_grad_enabled(torch.is_grad_enabled() and stage == 0):
            features = self.net.stem(images)
            features = self._run(features, 0, first)
        return self._head(self._run(features, first, last), stage)

    def train(self, mode: bool = True) -> Self:
        """Sets training mode for what the stage trains, evaluation mode for what is frozen."""
        super().train(mode)
        stage = self.place.stage
        if stage in (0, self.num_stages):
            return self
        first, _ = self._bounds(stage)
        # In training mode a frozen batch norm would still move its statistics.
        for frozen in [*self._stem(), *self.net.blocks[:first]]:
            frozen.eval()
        return self

    def _run(self, features: Tensor, first: int, last: int) -> Tensor:
        """Returns what the blocks first…last − 1 make of the features."""
        for block in list(self.net.blocks)[first:last]:
            features = block(features)
        return features

    def _head(self, features: Tensor, stage: int) -> Tensor:
        if stage == self.num_stages - 1:
            return self.net.head(features)
        return cast(Tensor, self.heads[stage](features.mean(dim=(2, 3))))

    def _bounds(self, stage: int) -> tuple[int, int]:
        """Returns the numbers of a stage's first block and of the one after its last."""
        num_blocks = len(self.net.blocks)
        return (
            stage * num_blocks // self.num_stages,
            (stage + 1) * num_blocks // self.num_stages,
        )

    def _stem(self) -> Iterator[nn.Module]:
        for child in self.net.children():
            if child is self.net.blocks:
                return
            yield child


def set_stage(model: nn.Module, stage: int) -> None:
    """Brings the staged network that `model` is, or wraps, into a stage."""
    for module in model.modules():
        if isinstance(module, Staged) and module.place.stage != stage:
            module.place.stage = stage
            # The stage decides which of its modules are in evaluation mode.
            module.train(module.training)


def num_channels(block: nn.Module) -> int:
    """Returns the channels of a block's output: those of its last convolution."""
    *_, last = (module for module in block.modules() if isinstance(module, nn.Conv2d))
    return last.out_channels
