"""Windows of stored images, resized with antialiasing: crops of trainings and of evaluations.

On a CPU torch's own kernel for uint8 resizes image by image: ten times quicker there than matrix
products. On other devices two products for the whole batch do the same: no loop, and no wait.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tune_speed.data.augmentation.crops import centred


def cut(
    pixels: Tensor,
    windows: Tensor,
    size: tuple[int, int],
    *,
    indices: Tensor | None = None,
    is_flipped: Tensor | None = None,
) -> Tensor:
    """Returns windows of images, resized bilinearly with antialiasing: uint8 (B, H, W, C).

    Windows (4, B) are upper edge, left edge, height and width in the images `indices` (B,) of
    `pixels` (N, H', W', C), uint8; None: each in its own. Where `is_flipped` (B,) is 1 the result
    is mirrored left to right. A value is that of torchvision's `resized_crop`, or by matrix
    products the next one where it lies halfway.
    """
    if pixels.device.type == "cpu":
        return _one_by_one(pixels, windows, size, indices=indices, is_flipped=is_flipped)
    own = pixels if indices is None else pixels.index_select(0, indices)
    return by_products(own, windows, size, is_flipped=is_flipped)


def by_products(
    pixels: Tensor, windows: Tensor, size: tuple[int, int], *, is_flipped: Tensor | None = None
) -> Tensor:
    """Returns what `cut` does of the images (B, H', W', C): R · X · Cᵀ for each channel X.

    R (H, H') has the weights of the rows, C (W, W') those of the columns.
    """
    top, left, height, width = windows
    rows = _weights(top, height, size[0], pixels.shape[1])
    columns = _weights(left, width, size[1], pixels.shape[2])
    if is_flipped is not None:
        columns = torch.where(is_flipped[:, None, None] == 1, columns.flip(1), columns)
    channels = pixels.permute(0, 3, 1, 2).float()
    resized = rows[:, None] @ channels @ columns[:, None].transpose(2, 3)
    # Products in TF32 may pass 255 by a little.
    return resized.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _one_by_one(
    pixels: Tensor,
    windows: Tensor,
    size: tuple[int, int],
    *,
    indices: Tensor | None,
    is_flipped: Tensor | None,
) -> Tensor:
    num_images = windows.shape[1]
    made = torch.empty((num_images, *size, pixels.shape[3]), dtype=torch.uint8)
    places = range(num_images) if indices is None else indices.tolist()
    flips = [0] * num_images if is_flipped is None else is_flipped.tolist()
    for image, place, flip, (top, left, height, width) in zip(
        made, places, flips, windows.T.tolist(), strict=True
    ):
        window = pixels[place, top : top + height, left : left + width].permute(2, 0, 1)[None]
        resized = window
        if (height, width) != size:
            resized = functional.interpolate(window, size, mode="bilinear", antialias=True)
        shown = resized[0].permute(1, 2, 0)
        image.copy_(shown.flip(1) if flip else shown)
    return made


def _weights(first: Tensor, length: Tensor, size: int, whole: int) -> Tensor:
    """Returns how much each of `whole` pixels counts for each of `size` new ones: (B, size, whole).

    With the scale s = length / size, the new pixel i lies at s · (i + 1/2) from the window's edge;
    a pixel of the window at a distance d counts max(0, 1 − d / max(s, 1)), all of a row over their
    sum.
    """
    device = first.device
    scale = (length / size)[:, None, None]
    centres = scale * (torch.arange(size, device=device) + 0.5)[None, :, None]
    places = (torch.arange(whole, device=device) - first[:, None] + 0.5)[:, None, :]
    weights = (1 - (places - centres).abs() / scale.clamp(min=1)).clamp_(min=0)
    weights = weights * ((places > 0) & (places < length[:, None, None]))
    return weights / weights.sum(2, keepdim=True)


def evaluation_windows(sizes: NDArray[np.int64], crop_pct: float) -> Tensor:
    """Returns the windows (4, B) that evaluation shows of images of those sizes, (B, 2)."""
    return torch.from_numpy(centred(sizes, crop_pct=crop_pct))
