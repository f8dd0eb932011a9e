"""Changes of pixels in batches, each image by its own number; none waits for the device.

Images are float32 (B, C, H, W) with whole values in [0, 255], and stay so: after each change they
are cut off as torchvision cuts uint8 images off, so that the pixels are those of its kernels. A
batch's numbers are (B,).
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms.v2.functional import (
    autocontrast_image,
    equalize_image,
    rgb_to_grayscale_image,
)

Change = Callable[..., Tensor]
Kernel = tuple[int, int, Change]
"""First and last of its operations, by their numbers, and what does them."""

SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE = range(1, 6)
BRIGHTNESS, CONTRAST, SATURATION = range(11, 14)


def operate(images: Tensor, kind: Tensor, amount: Tensor, *, among: range, mode: str) -> Tensor:
    """Returns the images after an operation of each, (B,), all of which are `among` the numbers.

    `mode` says how moves find values between pixels.
    """
    moves: Kernel = (SHEAR_X, ROTATE, partial(move, mode=mode))
    for first, last, change in (*KERNELS, moves):
        if first in among:
            images = where((kind >= first) & (kind <= last), change, images, kind, amount)
    return images


def where(chosen: Tensor, change: Change, images: Tensor, *numbers: Tensor) -> Tensor:
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
    is_coloured, kind = images.shape[1] == 3, _wide(kind)
    grey = rgb_to_grayscale_image(images).floor_() if is_coloured else images.mean(1, keepdim=True)
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


def move(images: Tensor, kind: Tensor, amount: Tensor, mode: str) -> Tensor:
    """Returns images that are sheared, shifted or turned, with 0 where nothing comes to lie.

    The `amount` is, by `kind`: the tangent of the shear, from the upper left corner; the shift as a
    share of the side; degrees, counterclockwise. Pixels come from the nearest place, or bilinearly.
    """
    height, width = images.shape[2:]
    turn = torch.where(kind == ROTATE, amount, 0.0) * (math.pi / 180)
    # Of a pixel at (x, y) from the centre, its value comes from (x, y) times these, plus the shift.
    straight, sine = turn.cos(), turn.sin()
    x_of_y = torch.where(kind == SHEAR_X, amount, -sine)
    y_of_x = torch.where(kind == SHEAR_Y, amount, sine)
    x_shift, y_shift = (
        torch.where(kind == shear, amount * across / 2, 0.0)
        - torch.where(kind == shift, (amount * along).round(), 0.0)
        for shear, shift, across, along in (
            (SHEAR_X, TRANSLATE_X, height, width),
            (SHEAR_Y, TRANSLATE_Y, width, height),
        )
    )
    x_row = [straight, x_of_y * (height / width), x_shift * (2 / width)]
    y_row = [y_of_x * (width / height), straight, y_shift * (2 / height)]
    matrices = torch.stack([*x_row, *y_row], 1).view(-1, 2, 3)
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode=mode, align_corners=False).round_()


def _cut_off(images: Tensor) -> Tensor:
    return images.clamp_(0, 255).floor_()


def _wide(numbers: Tensor) -> Tensor:
    return numbers[:, None, None, None]


def erase(images: Tensor, rectangles: Tensor, noise: Tensor, *, mode: str) -> Tensor:
    """Returns normalised images whose rectangle is 0, or normal numbers; not cut off to [0, 255].

    A rectangle has upper edge, left edge, height and width as shares of the sides, (B, 4). The
    numbers are one for each channel with the mode `rand`, one for each value with `pixel`:
    functions of the `noise` (B,), 32 bits, and of the place.
    """
    insides = []
    for axis, side in enumerate(images.shape[2:]):
        first, length = (rectangles[:, axis::2] * side).round_()[..., None].unbind(1)
        places = torch.arange(side, device=images.device)
        insides.append((places >= first) & (places < first + length))
    rows, columns = insides
    is_in = rows[:, None, :, None] & columns[:, None, None, :]
    if mode == "const":
        return images.masked_fill(is_in, 0)
    shape = images.shape[1:] if mode == "pixel" else (images.shape[1], 1, 1)
    places = torch.arange(math.prod(shape), device=images.device).view(shape)
    # 23 bits, each number in the middle of its interval, as fp32 has them.
    words = _hashed(_hashed(places) ^ _wide(noise)) >> 9
    normal = torch.erfinv((words * 2 + 1) * 2.0**-23 - 1) * math.sqrt(2)
    return torch.where(is_in, normal, images)


def _hashed(words: Tensor) -> Tensor:
    """Returns 32 bits, mixed; two inputs of 32 bits never give the same.

    Source: C. Wellons 2018, Prospecting for Hash Functions, `lowbias32`.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        words = (words ^ words >> shift) * factor & 0xFFFFFFFF
    return words ^ words >> 16


def _each_channel(change: Change, images: Tensor) -> Tensor:
    return change(images.to(torch.uint8).flatten(0, 1)[:, None]).float().view_as(images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Returns images whose values keep their upper `bits` alone."""
    step = _wide(torch.exp2(8 - bits))
    return (images / step).floor_().mul_(step)


KERNELS: tuple[Kernel, ...] = (
    (6, 6, lambda images, _, factor: sharpen(images, factor)),
    (7, 7, lambda images, _, bits: posterize(images, bits)),
    (8, 8, lambda x, _, level: torch.where(x >= 255 * _wide(level), 255 - x, x)),
    (9, 9, lambda images, *_: _each_channel(autocontrast_image, images)),
    (10, 10, lambda images, *_: _each_channel(equalize_image, images)),
    (BRIGHTNESS, SATURATION, blend),
    (14, 14, lambda images, _, turn: turn_hue(images, turn)),
)
"""All but moves."""
