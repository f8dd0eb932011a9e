"""The steps of a run as schedules see them, and torch's schedulers on the same steps."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

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
