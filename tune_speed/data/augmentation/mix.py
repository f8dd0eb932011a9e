"""Mixup and cutmix: each image gets a share of the one next to it, and of its label.

The image at position p of an epoch's order is mixed with that at p XOR 1, so that both are in one
batch where batch sizes are even; the last one of an odd epoch stays as it is. With λ ~ Beta(α, α),
drawn for each image, mixup takes λ x + (1 − λ) x'. Cutmix has x' in a box around a random centre,
with the sides √(1 − λ) H and √(1 − λ) W, cut off at the edges; λ is then 1 less the share of the
image that the box has. Labels become λ y + (1 − λ) y', (N, K).

Source: Zhang et al. 2018 (arXiv:1710.09412); Yun et al. 2019 (arXiv:1905.04899); timm's Mixup with
`mode="elem"`, which mixes a batch with itself in reverse order: that depends on the batch size.
"""

from typing import TYPE_CHECKING

import numpy as np

from tune_speed.data.augmentation.base import Drawer, Draws

if TYPE_CHECKING:
    from torch import Tensor

STREAM = 900
WHOLE = 2**32
"""An epoch's numbers are whole: a share of 1 is this many."""


def draw(drawer: Drawer, *, mixup: float, cutmix: float, prob: float, switch_prob: float) -> Draws:
    """Returns the numbers of an epoch's mixes, 2^32 for 1, (N,) each.

    `mix_own` is λ, and 1 where a box is cut; `mix_side`, `mix_y` and `mix_x` are the box's side and
    centre over the image's, and the side is 0 where there is none. The arguments are the fields of
    `Augmentation`.
    """
    from scipy.special import betaincinv

    kept, is_mixed, which, y, x = (STREAM + stream for stream in range(5))
    # In the middle of each of 2^53 intervals, as 0 would be no number of the distribution's.
    chances = drawer.uniform(kept) + 2.0**-54
    is_cut = drawer.uniform(which) < (switch_prob if mixup else 1.0)
    alphas = np.where(is_cut, cutmix, mixup) if cutmix else np.full(len(is_cut), mixup)
    shares = np.where(drawer.uniform(is_mixed) < prob, betaincinv(alphas, alphas, chances), 1.0)
    if not cutmix:
        return {"mix_own": np.rint(shares * WHOLE).astype(np.int64)}
    own, side = np.where(is_cut, 1.0, shares), np.where(is_cut, np.sqrt(1 - shares), 0.0)
    fixed = {"mix_own": own, "mix_side": side}
    numbers = {name: np.rint(share * WHOLE).astype(np.int64) for name, share in fixed.items()}
    return numbers | {"mix_y": drawer.below(WHOLE, y), "mix_x": drawer.below(WHOLE, x)}


def as_targets(labels: "Tensor", num_classes: int) -> "Tensor":
    """Returns labels (N,) as targets, fp32 (N, K): 1 for the class; others (N, K) as they are."""
    import torch

    if labels.ndim == 2:
        return labels
    # Not by `one_hot`, which may look at the labels' values from the host.
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)).float()


def mixed(
    images: "Tensor", labels: "Tensor", draws: "dict[str, Tensor]", *, num_classes: int
) -> "tuple[Tensor, Tensor]":
    """Returns the mixed images (B, C, H, W), and their labels (N,) or (N, K) as targets (B, K)."""
    import torch

    labels = as_targets(labels, num_classes)
    places = torch.arange(len(labels), device=images.device)
    others = (places ^ 1).clamp(max=len(labels) - 1)
    weights = own = draws["mix_own"].double() / WHOLE
    weights = weights.to(images.dtype)[:, None, None, None]
    if "mix_side" in draws:
        (is_row, height), (is_column, width) = (
            _stretches(draws["mix_side"], draws[f"mix_{axis}"], length)
            for axis, length in zip("yx", images.shape[2:], strict=True)
        )
        in_box = is_row[:, None, :, None] & is_column[:, None, None, :]
        weights = weights.masked_fill(in_box, 0.0)
        own = own - height * width / (images.shape[2] * images.shape[3])
    targets = torch.lerp(labels[others], labels, own.to(labels.dtype)[:, None])
    return torch.lerp(images[others], images, weights), targets


def _stretches(side: "Tensor", centre: "Tensor", length: int) -> "tuple[Tensor, Tensor]":
    """Returns which pixels of a side lie in each box, (B, length), and how many, (B,)."""
    import torch

    extent = side * length >> 32
    first = (centre * length >> 32) - extent // 2
    places = torch.arange(length, device=side.device) - first[:, None]
    is_in = (places >= 0) & (places < extent[:, None])
    return is_in, is_in.sum(dim=1)
