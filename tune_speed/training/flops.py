"""How much arithmetic a training does: a measure of work that does not depend on the machine."""

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

NUM_IMAGES = 2
"""Images of the batch that is counted; batch norm needs more than one."""


def training_flop_per_sample(
    model: nn.Module,
    *,
    image_shape: tuple[int, int, int],
    device: torch.device,
    autocast_dtype: torch.dtype | None = None,
) -> float | None:
    """Returns the floating-point operations of forward and backward per image.

    Those of convolutions, matrix products and attention, a multiply-add as two; for a network
    without any of them, None. Element-wise operations, augmentation and optimizer are not counted.
    What a backward recomputes counts again, as in flash attention.
    The model is copied, so that gradients, statistics and random numbers stay as they are; the
    copy counts towards the device's peak memory.

    Args:
        model: The network on `device`, compiled or not.
        image_shape: Channels, height and width.
        device: Where the model is.
        autocast_dtype: Arithmetic of the training; None: as the weights.
    """
    # What torch.compile wraps: compiled kernels hide their operations from the counter.
    eager = getattr(model, "_orig_mod", model)
    generators = [device] if device.type == "cuda" else []
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=generators), torch.enable_grad(), counter:
        copied = copy.deepcopy(eager).train()
        images = torch.zeros((NUM_IMAGES, *image_shape), device=device)
        with torch.autocast(device.type, autocast_dtype, enabled=autocast_dtype is not None):
            logits = copied(images)
        if logits.requires_grad:
            logits.float().sum().backward()
    total = int(counter.get_total_flops())
    return total / NUM_IMAGES if total else None


def num_parameters(model: nn.Module) -> int:
    """Returns the number of parameters, trainable or not; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
