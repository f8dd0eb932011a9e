"""How much arithmetic a training does: a measure of work that does not depend on the machine."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tune_speed.components.speedups.modules.stochastic_depth import Skipping, find_skipping

# Images of the batch that is counted; batch norm needs more than one.
NUM_IMAGES = 2


def training_flop_per_sample(
    model: nn.Module,
    *,
    image_shape: tuple[int, int, int],
    device: torch.device,
    autocast_dtype: torch.dtype | None = None,
    has_backward: bool = True,
) -> float | None:
    """Returns the floating-point operations of forward and backward per image.

    Those of convolutions, matrix products and attention, a multiply-add as two; for a network
    without any of them, None. Element-wise operations, augmentation and optimizer are not counted.
    What a backward recomputes counts again, as in flash attention. Blocks that are skipped at
    random count as often as they are executed on average: Σ p_l · (operations of block l).
    The model is copied, so that gradients, statistics and random numbers stay as they are; the
    copy counts towards the device's peak memory.

    The model is on `device`, compiled or not; `image_shape` is (C, H, W). Without `autocast_dtype`
    the arithmetic is that of the weights; without `has_backward` a forward pass alone counts.
    """
    # What torch.compile wraps: compiled kernels hide their operations from the counter.
    eager = getattr(model, "_orig_mod", model)
    copied = copy.deepcopy(eager).train()
    images = torch.zeros((NUM_IMAGES, *image_shape), device=device)

    def count() -> int:
        counter = FlopCounterMode(display=False)
        with torch.set_grad_enabled(has_backward), counter:
            with torch.autocast(device.type, autocast_dtype, enabled=autocast_dtype is not None):
                logits = copied(images)
            if logits.requires_grad:
                logits.float().sum().backward()
        return int(counter.get_total_flops())

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        total = _on_average(count, list(find_skipping(copied)))
    return total / NUM_IMAGES if total else None


def _on_average(count: Callable[[], int], blocks: list[Skipping]) -> float:
    """Returns the mean of `count` over the draws of the blocks, which add to it one by one."""
    survivals = [block.survival for block in blocks]
    for block in blocks:
        block.survival = 0.0
    without = count()
    mean = float(without)
    for block, survival in zip(blocks, survivals, strict=True):
        block.survival = 1.0
        mean += survival * (count() - without)
        block.survival = 0.0
    return mean


def num_parameters(model: nn.Module) -> int:
    """Returns the number of parameters, trainable or not; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
