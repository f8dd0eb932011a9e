"""Residual blocks that are skipped at random in training, without computing their branch."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from tune_speed.components.speedups.modules.residual import Block, Parts


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
        """Returns the block's output for features (N, C, H, W)."""
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
    """Lets each block be executed with its probability only, from now on."""
    draws = torch.Generator().manual_seed(seed)
    for block, survival in zip(blocks, survivals, strict=True):
        block.module.forward = Skipping(block, survival, draws)


def draws_of(model: nn.Module) -> torch.Generator:
    """Returns the generator, on the CPU, that a network's blocks share."""
    return next(find_skipping(model)).draws


def find_skipping(model: nn.Module) -> Iterator[Skipping]:
    """Yields what skips a network's blocks, in the order of its modules."""
    for module in model.modules():
        if isinstance(module.forward, Skipping):
            yield module.forward
