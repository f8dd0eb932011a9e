"""Changes of pixels in batches, each image by its own number; none waits for the device.

Images are float32 (B, C, H, W) with whole values in [0, 255], and stay so: after each change they
are cut off as torchvision cuts uint8 images off, so that the pixels are those of its kernels. A
batch's numbers are (B,).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

BRIGHTNESS, CONTRAST, SATURATION = range(3)
GREY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue: ITU-R BT.601, as torchvision rounds them."""


def among(
    images: Tensor, chosen: Tensor, change: Callable[..., Tensor], *numbers: Tensor
) -> Tensor:
    """Returns the images, of which the chosen ones (B,) are changed by their numbers.

    On a CPU those alone are computed, in place. On other devices all are, and the others' results
    are dropped: the host would have to wait for how many are chosen.
    """
    if images.device.type != "cpu":
        return torch.where(chosen[:, None, None, None], change(images, *numbers), images)
    for place in chosen.nonzero()[:, 0].tolist():
        one = slice(place, place + 1)
        images[one] = change(images[one], *(each[one] for each in numbers))
    return images


def blend(images: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    """Returns f x + (1 - f) x', where x' is 0, the mean of grey, or grey, as `kind` says."""
    kind, grey = _wide(kind), _grey(images)
    mean = grey.mean((1, 2, 3), keepdim=True)
    # With weights of 0 and 1 this is four times quicker than `torch.where` on a CPU.
    other = torch.lerp(grey, mean, (kind == CONTRAST).float()).mul_(kind != BRIGHTNESS)
    return _cut_off(torch.lerp(other, images, _wide(factor)))


def turn_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Returns images of three channels with hues moved by shares of their circle; others as is.

    With V the largest channel, D = V - smallest and the hue h in sixths of the circle, the channels
    are V - D max(0, min(k, 4 - k, 1)) for k = (h + n) mod 6 and n = 5, 3, 1.
    """
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(1)
    most = images.amax(1)
    spread = most - images.amin(1)
    divisor = spread.clamp(min=1)
    of_others = torch.where(most == green, (blue - red) / divisor + 2, (red - green) / divisor + 4)
    hue = torch.where(most == red, (green - blue) / divisor, of_others)
    hue = hue + 6 * turn[:, None, None]
    steps = [(hue + n).remainder_(6) for n in (5, 3, 1)]
    made = [most - spread * torch.minimum(k, 4 - k).clamp_(0, 1) for k in steps]
    # torchvision takes values in [0, 1] to uint8 so.
    return _cut_off(torch.stack(made, 1).mul_((256 - 1e-3) / 255))


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Returns f x + (1 - f) x' with x' smoothed by [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13.

    The outermost pixels stay as they are.
    """
    if min(images.shape[2:]) < 3:
        return images
    inner = images[..., 1:-1, 1:-1]
    # Sums of three columns, then of three rows: quicker than a convolution.
    sums = images[..., :-2] + images[..., 1:-1]
    sums += images[..., 2:]
    smooth = sums[:, :, :-2] + sums[:, :, 1:-1]
    smooth.add_(sums[:, :, 2:]).add_(inner, alpha=4)
    changed = images.clone()
    changed[..., 1:-1, 1:-1] += smooth.div_(13).round_().sub_(inner).mul_(1 - _wide(factor))
    return _cut_off(changed)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Returns images whose values keep their upper `bits` alone."""
    step = _wide(torch.exp2(8 - bits))
    return (images / step).floor_().mul_(step)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Returns images whose values from `threshold` on, of 255, are inverted."""
    return torch.where(images >= _wide(255 * threshold), 255 - images, images)


def stretch_contrast(images: Tensor) -> Tensor:
    """Returns images with each channel's values stretched to [0, 255]."""
    least, most = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    is_flat = least == most
    scale = torch.where(is_flat, 1.0, (most - least) * (1 / 255))
    return _cut_off((images - least.masked_fill(is_flat, 0)).div_(scale))


def equalize(images: Tensor) -> Tensor:
    """Returns images with an even histogram in each channel."""
    from torchvision.transforms.v2.functional import equalize_image

    equal: Tensor = equalize_image(images.to(torch.uint8))
    return equal.float()


SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE = range(1, 6)


def move(images: Tensor, kind: Tensor, amount: Tensor, *, mode: str) -> Tensor:
    """Returns images that are sheared, shifted or turned, with 0 where nothing comes to lie.

    The `amount` is, by `kind`: the tangent of the shear, from the upper left corner; the shift as a
    share of the side; degrees, counterclockwise. Pixels come from the nearest place, or bilinearly.
    """
    height, width = images.shape[2:]
    turn = torch.where(kind == ROTATE, amount, 0.0) * (math.pi / 180)
    # Of a pixel at (x, y) from the centre, its value comes from (x, y) times these, plus the shift.
    straight, across = turn.cos(), turn.sin()
    x_of_y = torch.where(kind == SHEAR_X, amount, -across)
    y_of_x = torch.where(kind == SHEAR_Y, amount, across)
    x_shift = _shift(kind, amount, shear=SHEAR_X, translate=TRANSLATE_X, sides=(height, width))
    y_shift = _shift(kind, amount, shear=SHEAR_Y, translate=TRANSLATE_Y, sides=(width, height))
    x_row = [straight, x_of_y * (height / width), x_shift]
    y_row = [y_of_x * (width / height), straight, y_shift]
    matrices = torch.stack([*x_row, *y_row], 1).view(-1, 2, 3)
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode=mode, align_corners=False).round_()


def _shift(
    kind: Tensor, amount: Tensor, *, shear: int, translate: int, sides: tuple[int, int]
) -> Tensor:
    """Returns shifts along the second of the sides [half-sides], whole pixels in a translation."""
    across, along = sides
    shift = torch.where(kind == translate, -2 / along * (amount * along).round(), 0.0)
    return torch.where(kind == shear, amount * (across / along), shift)


def _grey(images: Tensor) -> Tensor:
    """Returns one channel: (B, 1, H, W)."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.split(1, 1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2]).floor_()


def _cut_off(images: Tensor) -> Tensor:
    return images.clamp_(0, 255).floor_()


def _wide(numbers: Tensor) -> Tensor:
    return numbers[:, None, None, None]
