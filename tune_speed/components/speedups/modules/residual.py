"""Residual blocks by their parts: out = join(branch(x), shortcut(x)).

Our own blocks have these three methods. Blocks of torchvision and timm are one `forward`, which is
taken apart here into the modules that it calls in turn.
"""

from typing import NamedTuple, Protocol, cast

from torch import Tensor, nn


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
        """Returns the branch's output."""
        for name in self.branch_names.split():
            # timm sets the modules that a block does not have to None.
            if (layer := getattr(self.module, name)) is not None:
                features = layer(features)
        return features

    def shortcut(self, features: Tensor) -> Tensor:
        """Returns the features, or a projection of them."""
        downsample = cast("nn.Module | None", self.module.downsample)
        return features if downsample is None else cast(Tensor, downsample(features))

    def join(self, branch: Tensor, shortcut: Tensor) -> Tensor:
        """Returns the activated sum."""
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
