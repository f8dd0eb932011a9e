"""Residual blocks that are skipped at random in training, without computing their branch."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from tune_speed.components.speedups.modules.residual import Block, Parts


class Draws:
    """Yes or no at random, by a generator on the CPU that all blocks of a network share."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def is_yes(self, probability: float) -> bool:
        """Returns True with that probability."""
        # On the CPU: the host decides what is launched, and would have to wait for a GPU's draw.
        draw = torch.rand((), generator=self.generator, device="cpu")
        return draw.item() < probability

    def restart(self, seed: int) -> None:
        """Begins again, as if made with `seed`."""
        self.generator.manual_seed(seed)


class Skipping:
    """The `forward` of a block that is skipped at random; it replaces the block's own.

    `executions` counts how often the branch was computed in training.
    """

    # No module, so that the network's parameters keep their names.

    def __init__(self, block: Block, survival: float, draws: Draws) -> None:
        self.module, self.survival, self.draws = block.module, survival, draws
        self._parts: Parts = block.parts
        self.executions = 0

    def __call__(self, features: Tensor) -> Tensor:
        """Returns the block's output for features (N, C, H, W)."""
        if not self.module.training:
            return self._expected(features)
        if self.draws.is_yes(self.survival):
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
    draws = Draws(seed)
    for block, survival in zip(blocks, survivals, strict=True):
        block.module.forward = Skipping(block, survival, draws)


def restart_draws(model: nn.Module, *, seed: int) -> None:
    """Begins the draws of a network's blocks again."""
    for skipping in find_skipping(model):
        skipping.draws.restart(seed)


def draws_state(model: nn.Module) -> Tensor:
    """Returns the state of the generator that a network's blocks share, uint8 on the CPU."""
    return next(find_skipping(model)).draws.generator.get_state()


def set_draws_state(model: nn.Module, state: Tensor) -> None:
    """Continues the draws from what `draws_state` returned."""
    for skipping in find_skipping(model):
        skipping.draws.generator.set_state(state)


def find_skipping(model: nn.Module) -> Iterator[Skipping]:
    """Yields what skips a network's blocks, in the order of its modules."""
    for module in model.modules():
        if isinstance(module.forward, Skipping):
            yield module.forward
