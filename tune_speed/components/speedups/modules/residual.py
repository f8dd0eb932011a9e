"""Residual blocks, out = join(branch(x), shortcut(x)): skipped, or trained in stages.

Our own blocks have these three methods. Blocks of torchvision and timm are one `forward`, which is
taken apart here into the modules that it calls in turn.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeGuard, cast

import torch
from torch import Tensor, nn

from tune_speed.components.speedups.modules.heads import heads_of


class Parts(Protocol):
    """A residual block, taken apart."""

    def branch(self, features: Tensor) -> Tensor:
        """Returns what is left out where the block is skipped."""

    def shortcut(self, features: Tensor) -> Tensor:
        """Returns the features, brought to the shape of the branch's output."""

    def join(self, branch: Tensor, shortcut: Tensor) -> Tensor:
        """Returns the block's output as a new tensor; a branch of no dimension is a number."""


class Block(NamedTuple):
    """A residual block of a network."""

    module: nn.Module
    parts: Parts


TORCHVISION, TIMM = "torchvision.models.resnet", "timm.models.resnet"
# The modules of a branch in the order in which they are called, and what is applied to the sum of
# branch and shortcut, by the block's class. timm's `drop_path` is missing: it does nothing in
# evaluation, and in training it is refused.
LIBRARY_BLOCKS = {
    (TORCHVISION, "BasicBlock"): ("conv1 bn1 relu conv2 bn2", "relu"),
    (TORCHVISION, "Bottleneck"): ("conv1 bn1 relu conv2 bn2 relu conv3 bn3", "relu"),
    (TIMM, "BasicBlock"): ("conv1 bn1 drop_block act1 aa conv2 bn2 se", "act2"),
    (TIMM, "Bottleneck"): ("conv1 bn1 act1 conv2 bn2 drop_block act2 aa conv3 bn3 se", "act3"),
}


class LibraryBlock:
    """A block of torchvision or timm."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.branch_names, self.last_activation = LIBRARY_BLOCKS[_kind(module)]

    def branch(self, features: Tensor) -> Tensor:
        for name in self.branch_names.split():
            # timm sets the modules that a block does not have to None.
            if (layer := getattr(self.module, name)) is not None:
                features = layer(features)
        return features

    def shortcut(self, features: Tensor) -> Tensor:
        downsample = cast("nn.Module | None", self.module.downsample)
        return features if downsample is None else cast(Tensor, downsample(features))

    def join(self, branch: Tensor, shortcut: Tensor) -> Tensor:
        return cast(Tensor, getattr(self.module, self.last_activation)(branch + shortcut))


def find_blocks(model: nn.Module) -> list[Block]:
    """Returns the residual blocks of a network in the order of its modules; maybe none."""
    found = ((module, parts_of(module)) for module in model.modules())
    return [Block(module, parts) for module, parts in found if parts is not None]


def parts_of(module: nn.Module) -> Parts | None:
    """Returns the parts of a residual block, or None where `module` is none that is known."""
    if all(callable(getattr(module, name, None)) for name in ("branch", "shortcut", "join")):
        return cast(Parts, module)
    return LibraryBlock(module) if _kind(module) in LIBRARY_BLOCKS else None


def _kind(module: nn.Module) -> tuple[str, str]:
    # By name, so that neither library has to be imported.
    return type(module).__module__, type(module).__qualname__


class Skipping:
    """The `forward` of a block that is skipped at random; it replaces the block's own.

    `executions` counts how often the branch was computed in training.
    """

    # No module, so that the network's parameters keep their names.

    def __init__(self, block: Block, survival: float, draws: torch.Generator) -> None:
        self.module, self.survival, self.draws = block.module, survival, draws
        self._parts: Parts = block.parts
        self.executions = 0

    def __call__(self, features: Tensor) -> Tensor:
        if not self.module.training:
            return self._expected(features)
        # On the CPU: the host decides what is launched, and would have to wait for a GPU's draw.
        if torch.rand((), generator=self.draws, device="cpu").item() < self.survival:
            self.executions += 1
            return self._whole(features)
        # A number on the CPU: it costs no kernel on a GPU, and keeps the shortcut's type.
        nothing = torch.zeros((), device="cpu")
        return self._parts.join(nothing, self._parts.shortcut(features))

    def _expected(self, features: Tensor) -> Tensor:
        if self.survival == 1:
            return self._whole(features)
        branch = self.survival * self._parts.branch(features)
        return self._parts.join(branch, self._parts.shortcut(features))

    def _whole(self, features: Tensor) -> Tensor:
        # The class's own, as the instance's `forward` is this object.
        output: Tensor = type(self.module).forward(self.module, features)
        return output


def skip_at_random(blocks: Iterable[Block], survivals: Sequence[float], *, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    for block, survival in zip(blocks, survivals, strict=True):
        block.module.forward = Skipping(block, survival, draws)


def draws_of(model: nn.Module) -> torch.Generator:
    return next(find_skipping(model)).draws


def find_skipping(model: nn.Module) -> Iterator[Skipping]:
    """Yields what skips a network's blocks, in the order of its modules."""
    for module in model.modules():
        if isinstance(module.forward, Skipping):
            yield module.forward


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
        own = (layer for _, layer in heads_of(cast(nn.Module, self.net)))
        return (*own, *self.heads)

    def forward(self, images: Tensor) -> Tensor:
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
        for block in list(self.net.blocks)[first:last]:
            features = block(features)
        return features

    def _head(self, features: Tensor, stage: int) -> Tensor:
        if stage == self.num_stages - 1:
            return self.net.head(features)
        return cast(Tensor, self.heads[stage](features.mean(dim=(2, 3))))

    def _bounds(self, stage: int) -> tuple[int, int]:
        num_blocks = len(self.net.blocks)
        return (stage * num_blocks // self.num_stages, (stage + 1) * num_blocks // self.num_stages)

    def _stem(self) -> Iterator[nn.Module]:
        for child in self.net.children():
            if child is self.net.blocks:
                return
            yield child


def set_stage(model: nn.Module, stage: int) -> None:
    for module in model.modules():
        if isinstance(module, Staged) and module.place.stage != stage:
            module.place.stage = stage
            # The stage decides which of its modules are in evaluation mode.
            module.train(module.training)


def num_channels(block: nn.Module) -> int:
    *_, last = (module for module in block.modules() if isinstance(module, nn.Conv2d))
    return last.out_channels
