"""What cannot show an effect on this device: a result of its own, never "no gain"."""

import torch

from tune_speed.data.loaders.configs import Streaming
from tune_speed.training.recipe import Recipe


def not_applicable(
    recipe: Recipe, base: Recipe, *, device: torch.device, num_devices: int
) -> str | None:
    """Returns why what `recipe` changes about `base` has no effect here, or cannot run; or None.

    On a CPU, where devices are processes, `num_devices`, GPUs of this machine, is not looked at.
    """
    if device.type == "cuda":
        if recipe.devices <= num_devices:
            return None
        are = "is" if num_devices == 1 else "are"
        return f"it takes {recipe.devices} GPUs, and there {are} {num_devices} here"
    if recipe.needs_cuda() and not base.needs_cuda():
        return recipe.needs_cuda()
    ours, theirs = recipe.loader, base.loader
    # Another kind of loader is a change of its own, even if it pins by default.
    if (
        isinstance(ours, Streaming)
        and isinstance(theirs, Streaming)
        and (ours.pin_memory != theirs.pin_memory)
    ):
        return "pinned memory speeds up copies to a GPU, and there is none here"
    if recipe.cuda_graph != base.cuda_graph:
        return "a CUDA graph spares launches on a GPU, and there is none here"
    return None
