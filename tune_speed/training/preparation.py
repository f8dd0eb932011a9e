"""What is derived from data before the first step, on the training clock: weights and sample order.

Nothing of it leaves a trace beyond its purpose: a short training that only scores samples gives
weights, batch statistics and random numbers back as they were.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tune_speed.components.optim.base import set_rates
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.schedules.base import Factors
from tune_speed.components.speedups.base import Shape, Start
from tune_speed.components.speedups.modules.losses import losses_of
from tune_speed.data.base import main_classes
from tune_speed.data.loaders.base import Loader
from tune_speed.data.loaders.resident import eval_batches
from tune_speed.data.orders import Curriculum, CurriculumOrder
from tune_speed.data.split import Splits
from tune_speed.runtime.device import remembered
from tune_speed.training.build import Job, open_order, view_of
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import AUTOCAST_DTYPES, Forward, Group, Stepper, micro_batch_of

SCORING_BATCH = 500
SCORING_EXAMPLES = 128
"""Samples of a step that `scoring_lr` is the rate of."""
WARM_UP_FRAC = 0.1
"""Share of a short training in which its rate rises."""

Batches = Iterator[tuple[Tensor, Tensor]]
TakeAll = Callable[[Iterator[object], int], None]


def needs_preparation(recipe: Recipe) -> bool:
    return recipe.speedups.sets_weights or isinstance(recipe.order, Curriculum)


def prepare(
    job: Job, model: nn.Module, loader: Loader, forward: Forward, *, take: TakeAll
) -> NDArray[np.float64] | None:
    """Sets the weights that training starts from, and puts samples in an order of their scores.

    Returns these scores, (N,), for `reorder`; None without such an order. `take` takes and times
    steps of short trainings. Rank 0's outcome holds: `forward` must not average gradients.
    """
    recipe, device, batch_size = job.recipe, job.device, micro_batch_of(job.recipe)
    loader.show_at(*recipe.train_shape(job.splits.train.pixels.shape[1:])[:2])

    def fit(fitted: nn.Module, batches: Batches, num_steps: int, recipe: Recipe = recipe) -> None:
        own = forward if fitted is model else fitted
        stepper = Stepper(fitted, own, recipe, device=device, is_recorded=False)
        take(_steps(stepper, batches, num_steps), num_steps)

    def scores_by(order: Curriculum) -> NDArray[np.float64]:
        num_steps = order.scoring_epochs * loader.num_samples / batch_size
        scoring = Sgd(lr=order.scoring_lr, lr_per_examples=SCORING_EXAMPLES)
        with without_trace(model, device=device):
            endless = chain.from_iterable(loader.epoch(epoch) for epoch in count())
            own = recipe.model_copy(update={"optimizer": scoring})
            fit(model, endless, max(1, round(num_steps)), own)
            model.eval()
            losses = list[Tensor]()
            num_batches = math.ceil(len(job.splits.train.labels) / SCORING_BATCH)
            take(map(losses.append, _losses(model, recipe, job.splits, device=device)), num_batches)
            model.train()
        scores: NDArray[np.float64] = torch.cat(losses).double().cpu().numpy()
        return job.ranks.broadcast(scores)

    is_reordered = False

    def easiest(share: float, passes: int) -> Batches:
        nonlocal is_reordered
        is_reordered = True
        first, labels = Curriculum(start_frac=share), main_classes(job.splits.train.labels)
        num_samples = passes * first.sizes(len(labels))[0]
        order = CurriculumOrder(len(labels), batch_size, job.seed, first, labels, num_samples)
        loader.reorder(order.with_scores(scores_by(first)))
        # Batch norm may refuse a lone image.
        return (batch for batch in loader.epoch(0) if len(batch[1]) > 1)

    sizes = {"num_classes": job.splits.num_classes, "batch_size": batch_size}
    start = Start(
        loader.epoch, easiest, loader.num_samples, device=device, seed=job.seed, fit=fit, **sizes
    )
    recipe.speedups.init_weights(model, start)
    job.ranks.align(model)
    if is_reordered:
        loader.reorder(open_order(recipe, job.splits.train, seed=job.seed))
    if not isinstance(recipe.order, Curriculum):
        return None
    scores = scores_by(recipe.order)
    reorder(job, loader, scores)
    return scores


def _steps(stepper: Stepper, batches: Batches, num_steps: int) -> Iterator[None]:
    """Takes a step on each batch, at the recipe's rate for as many samples, after a warm-up.

    A step of n samples has n / N of the rate of a step of N (`OptimizerConfig.rate_factor`), and
    the first tenth of the steps rises to it in a line.

    Source: Goyal et al. 2017 (arXiv:1706.02677), sections 2.1 and 2.2.
    """
    recipe, warm_up = stepper.recipe, math.ceil(WARM_UP_FRAC * num_steps)
    for step, (images, labels) in enumerate(islice(batches, num_steps), start=1):
        # The images may be of another set, whose size is another.
        shape = Shape(*images.shape[2:])
        factor = recipe.optimizer.rate_factor(len(labels), of=recipe.samples_per_step)
        set_rates(stepper.optimizer, Factors(lr=factor * min(1.0, step / warm_up), momentum=None))
        recipe.begin_step(stepper.model, shape)
        stepper.learn(Group(len(labels), [(images, labels)]), shape, frac=1.0)
        yield


def reorder(job: Job, loader: Loader, scores: NDArray[np.float64]) -> None:
    order = open_order(job.recipe, job.splits.train, seed=job.seed)
    loader.reorder(order.with_scores(scores))


@contextmanager
def without_trace(model: nn.Module, *, device: torch.device) -> Iterator[None]:
    """Puts weights, batch statistics and random numbers back as they were, after the block."""
    restore = remembered(chain(model.parameters(), model.buffers()))
    trained = [parameter.requires_grad for parameter in model.parameters()]
    model.train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    restore()
    for parameter, requires_grad in zip(model.parameters(), trained, strict=True):
        parameter.requires_grad_(requires_grad)


def _losses(
    model: nn.Module, recipe: Recipe, splits: Splits, *, device: torch.device
) -> Iterator[Tensor]:
    """Yields the losses of the training images by batches, in the set's order, not augmented."""
    dtype = AUTOCAST_DTYPES[recipe.precision]
    batches = eval_batches(
        splits.train, view_of(recipe, splits), batch_size=SCORING_BATCH, device=device
    )
    for images, labels in batches:
        # Not around the loop: modes would hold between batches, too.
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype is not None):
            yield losses_of(model(images).float(), labels, are_several=labels.ndim == 2)
