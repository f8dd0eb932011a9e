"""What other libraries compute, to compare with: schedules, Muon, affine changes."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import scipy.ndimage
import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tune_speed.components.optim.torch.muon import COEFFICIENTS
from tune_speed.components.schedules.base import Factors, ScheduleConfig


def factors_of_run(
    config: ScheduleConfig, num_steps: int, *, losses: Sequence[float] = ()
) -> list[Factors]:
    step_frac = 1 / num_steps
    progress = [(k + 1) / num_steps for k in range(num_steps)]
    return [config.factors(p, step_frac=step_frac, losses=losses) for p in progress]


def lr_of_run(config: ScheduleConfig, num_steps: int) -> list[float]:
    return [factors.lr for factors in factors_of_run(config, num_steps)]


def torch_optimizer(lr: float = 1.0) -> SGD:
    return SGD([torch.zeros(1, requires_grad=True)], lr=lr, momentum=0.9)


def torch_lr_of_run(schedule: Callable[[Optimizer], LRScheduler], num_steps: int) -> list[float]:
    return list(_torch_lr(schedule, num_steps))


def _torch_lr(schedule: Callable[[Optimizer], LRScheduler], num_steps: int) -> Iterator[float]:
    optimizer = torch_optimizer()
    scheduler = schedule(optimizer)
    for _ in range(num_steps):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()


# --- Muon, on the singular values


def by_hand(matrix, num_iterations):
    """The polynomial on the singular values themselves."""
    a, b, c = COEFFICIENTS
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(num_iterations):
        s = a * s + b * s**3 + c * s**5
    return u * s @ vt


# --- Affine changes of images by SciPy, as what ours are compared with.


def changed_by_scipy(image, entries, *, most):
    """Returns an image (H, W, C) under the change of six numbers of 10 bits, in one integer."""
    numbers = (int(entries) >> (10 * np.arange(6))) & 1023
    matrix = (numbers / 1023 * 2 * most - most).reshape(2, 3)
    size = np.array(image.shape[:2])
    # Ours is of (x, y) in [-1, 1], theirs of (row, column) between the pixels' centres.
    turn = (np.eye(2) + matrix[:, :2])[::-1, ::-1]
    to_unit, middle, from_unit = np.diag(2 / size), 1 / size - 1, np.diag(size / 2)
    shift = from_unit @ (turn @ middle + matrix[::-1, 2] - middle)
    whole = from_unit @ turn @ to_unit
    channels = (
        scipy.ndimage.affine_transform(channel, whole, shift, order=1, mode="reflect")
        for channel in np.moveaxis(image, -1, 0)
    )
    return np.stack(list(channels), axis=-1)
