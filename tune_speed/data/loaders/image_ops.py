"""Batches of images as tensor programs: no loop over images, no wait for the device.

N: images of a set, B: images of a batch, H, W: height and width, C: channels. Pixels are uint8 and
channels-last, (N, H, W, C), from disk to device: a fourth of the memory of floats, and a pixel's
channels move together.
"""

import torch
from torch import Tensor
from torch.nn import functional


class Normalizer:
    """Turns pixels into normalised float32 images: (x / 255 - mean) / std for each channel."""

    def __init__(
        self,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        height: int,
        width: int,
        device: torch.device,
    ) -> None:
        # One number for each value of an image, not one for each channel: broadcasting over an
        # inner dimension of 3 is five times slower on CPU.
        per_channel = torch.tensor([mean, std], dtype=torch.float64)
        mean_values, std_values = per_channel.repeat(1, height * width)
        self._scale = (1 / (255 * std_values)).to(device, torch.float32)
        self._shift = (mean_values / std_values).to(device, torch.float32)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Returns float32 (B, H, W, C) of uint8 (B, H, W, C)."""
        return pixels.flatten(1).float().mul_(self._scale).sub_(self._shift).view(pixels.shape)


def gather_moved(
    pixels: Tensor,
    indices: Tensor,
    *,
    pad: int,
    shift_y: Tensor,
    shift_x: Tensor,
    is_flipped: Tensor,
) -> Tensor:
    """Returns the images `indices` of `pixels` (N, H, W, C), each cropped and flipped its own way.

    Equal to padding by reflection with `pad` pixels, fewer than H and W, cutting out the window at
    (shift_y, shift_x), (B,) each in 0 to 2 * pad, and flipping left to right where `is_flipped`
    (B,) is 1. Each pixel is fetched once: a single gather, without padded or flipped copies.
    """
    num_samples, height, width, channels = pixels.shape
    rows = _sources(height, shift_y - pad)
    columns = _sources(width, shift_x - pad)
    columns = torch.where(is_flipped[:, None] == 1, columns.flip(1), columns)
    flat = ((indices[:, None] * height + rows)[:, :, None] * width + columns[:, None, :]).flatten()
    moved = pixels.view(num_samples * height * width, channels).index_select(0, flat)
    return moved.view(len(indices), height, width, channels)


def change_affinely(images: Tensor, entries: Tensor, *, most: float) -> Tensor:
    """Returns the images (B, H, W, C), each of them with an affine change of its own.

    `entries` (B,), int64, have six numbers of 10 bits, which stand for -most to most: added to the
    identity they are the matrix (2, 3) from a pixel's place to where its value comes from.
    """
    shifts = torch.arange(0, 60, 10, device=images.device)
    numbers = (entries[:, None] >> shifts & 1023) * (2 * most / 1023) - most
    matrices = numbers.view(-1, 2, 3) + torch.eye(2, 3, device=images.device)
    turned = images.permute(0, 3, 1, 2)
    grid = functional.affine_grid(matrices, list(turned.shape), align_corners=False)
    changed = functional.grid_sample(
        turned, grid, padding_mode="reflection", align_corners=False, mode="bilinear"
    )
    return changed.permute(0, 2, 3, 1).contiguous()


def cut_out(images: Tensor, *, side: int, corner_y: Tensor, corner_x: Tensor) -> Tensor:
    """Sets a square of each image to 0, the mean of normalised images, and returns `images`.

    `images` (B, H, W, C) are contiguous and changed in place; `corner_y` and `corner_x` (B,) are
    the squares' upper left corners, within 0 to H - side and W - side.
    """
    batch, height, width, channels = images.shape
    steps = torch.arange(side, device=images.device)
    first_row = torch.arange(batch, device=images.device) * height + corner_y
    rows = (first_row[:, None] + steps)[:, :, None] * width
    columns = (corner_x[:, None] + steps)[:, None, :]
    images.view(batch * height * width, channels).index_fill_(0, (rows + columns).flatten(), 0)
    return images


def to_channels_first(images: Tensor, *, channels_last: bool) -> Tensor:
    """Returns (B, C, H, W) of (B, H, W, C), in torch's channels-last memory format on request."""
    turned = images.permute(0, 3, 1, 2)
    # A copy even of one channel, where `contiguous` would keep strides that read as channels-last.
    return turned if channels_last else turned.clone(memory_format=torch.contiguous_format)


def _sources(size: int, first: Tensor) -> Tensor:
    """Returns, for windows that start at `first` (B,), the source of each place, (B, size).

    Outside of 0 to size - 1, position i is that of its mirror image: -i, or 2 * (size - 1) - i.
    """
    positions = first[:, None] + torch.arange(size, device=first.device)
    return (size - 1) - ((size - 1) - positions.abs()).abs()
