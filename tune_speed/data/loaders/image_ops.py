"""Batches of images as tensor programs: no loop over images, no wait for the device.

N: images of a set, B: images of a batch, H, W: height and width, C: channels. Pixels are uint8 and
channels-last, (N, H, W, C), from disk to device: a fourth of the memory of floats, and a pixel's
channels move together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


class Normalizer:
    """Turns pixels into normalised float32 images: (x / 255 - mean) / std for each channel."""

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], num_pixels: int, device: torch.device
    ) -> None:
        # One number for each value of an image, not one for each channel: broadcasting over an
        # inner dimension of 3 is five times slower on CPU.
        per_channel = torch.tensor([mean, std], dtype=torch.float64)
        mean_values, std_values = per_channel.repeat(1, num_pixels)
        self._scale = (1 / (255 * std_values)).to(device, torch.float32)
        self._shift = (mean_values / std_values).to(device, torch.float32)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Returns float32 (B, H, W, C) of uint8 (B, H, W, C)."""
        return pixels.flatten(1).float().mul_(self._scale).sub_(self._shift).view(pixels.shape)


class Mover:
    """Gathers images of (H, W) pixels from a set, each cropped and flipped its own way."""

    def __init__(self, height: int, width: int, *, pad: int, device: torch.device) -> None:
        """Makes tables of a row a shift; the columns' second half is of flipped images."""
        columns = _sources(width, pad)
        self._rows = (_sources(height, pad) * width).to(device)
        self._columns = torch.cat([columns, columns.flip(1)]).to(device)
        self._num_shifts, self._size = 2 * pad + 1, height * width

    def __call__(
        self,
        pixels: Tensor,
        indices: Tensor,
        *,
        shift_y: Tensor,
        shift_x: Tensor,
        is_flipped: Tensor,
    ) -> Tensor:
        """Returns the images `indices` (B,) of `pixels` (N, H, W, C), moved.

        Equal to padding by reflection, cutting out the window at (shift_y, shift_x), (B,) each in
        0 to 2 * pad, and flipping left to right where `is_flipped` (B,) is 1. Each pixel is
        fetched once: a single gather, without padded or flipped copies.
        """
        rows = self._rows.index_select(0, shift_y).add_((indices * self._size)[:, None])
        columns = self._columns.index_select(0, shift_x.add(is_flipped, alpha=self._num_shifts))
        flat = (rows[:, :, None] + columns[:, None, :]).flatten()
        moved = pixels.view(-1, pixels.shape[3]).index_select(0, flat)
        return moved.view(len(indices), *pixels.shape[1:])


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


def _sources(size: int, pad: int) -> Tensor:
    """Returns, for each shift in 0 to 2 * pad, the source of each place: (2 * pad + 1, size).

    Outside of 0 to size - 1, position i is that of its mirror image: -i, or 2 * (size - 1) - i.
    """
    positions = torch.arange(-pad, pad + 1)[:, None] + torch.arange(size)
    return (size - 1) - ((size - 1) - positions.abs()).abs()


# On a CPU torch's own kernel for uint8 resizes image by image: ten times quicker there than matrix
# products. On other devices two products for the whole batch do the same: no loop, and no wait.
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
    if pixels.device.type != "cpu":
        own = pixels if indices is None else pixels.index_select(0, indices)
        return by_products(own, windows, size, is_flipped=is_flipped)
    made = torch.empty((windows.shape[1], *size, pixels.shape[3]), dtype=torch.uint8)
    places = range(len(made)) if indices is None else indices.tolist()
    flips = [0] * len(made) if is_flipped is None else is_flipped.tolist()
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
