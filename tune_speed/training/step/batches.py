"""The groups of micro-batches that a run's optimizer steps learn from, from any step on."""

from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from tune_speed.components.speedups.base import Shape
from tune_speed.data.loaders.base import Batch, Loader
from tune_speed.runtime.training_clock import Waits
from tune_speed.training.ranks import ALONE, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import Group


class Position(NamedTuple):
    """How far a rank is with its batches."""

    epoch: int = -1
    left: int = 0
    """Samples of the epoch that no step has had yet, over all devices."""
    num_batches: int = 0
    """Batches of the epoch that this rank has had."""


def open_steps(
    loader: Loader,
    recipe: Recipe,
    step_schedule: Iterable[tuple[Shape, int]],
    waits: Waits,
    *,
    ranks: Ranks = ALONE,
    num_done: int = 0,
) -> Generator[tuple[Shape, Group]]:
    """Returns the shape and the samples of each optimizer step but for the first `num_done`.

    The position in the epoch is found at once, before the first step is drawn.
    """
    shapes = (shape for shape, num_steps in step_schedule for _ in range(num_steps))
    position = _position(loader, recipe, islice(shapes, num_done), ranks)
    # Only the last batch that was had is drawn again and dropped, so that what an epoch begins with
    # is not paid for twice on the training clock.
    had: list[Batch] = []
    rest: Iterator[Batch] = iter(())
    if position.num_batches:
        rest = _epoch(loader, recipe, position.epoch, skip=position.num_batches - 1)
        had = [next(rest)]
        rest = waits.over(rest)
    return _steps(loader, recipe, shapes, waits, ranks, position, rest, had)


def samples_of_steps(
    loader: Loader, recipe: Recipe, step_schedule: Iterable[tuple[Shape, int]]
) -> Iterator[tuple[Shape, int]]:
    """Yields the shape and the number of samples of each optimizer step; no batch is drawn."""
    epoch, left = -1, 0
    for shape in (shape for shape, num_steps in step_schedule for _ in range(num_steps)):
        if left == 0:
            epoch, left = epoch + 1, loader.num_in(epoch + 1)
        num_samples = min(recipe.samples_per_step * shape.growth, left)
        left -= num_samples
        yield shape, num_samples


def _position(loader: Loader, recipe: Recipe, shapes: Iterable[Shape], ranks: Ranks) -> Position:
    """Returns where the steps of these shapes have led."""
    share, position = ranks.share(recipe.samples_per_step), Position()
    for shape in shapes:
        epoch, left, num_batches = position
        if left == 0:
            epoch, left, num_batches = epoch + 1, loader.num_in(epoch + 1), 0
        num_samples = min(recipe.samples_per_step * shape.growth, left)
        group = Group(num_samples, (), share.counts(num_samples))
        num_batches += group.num_batches(recipe, ranks)
        position = Position(epoch, left - num_samples, num_batches)
    return position


def _epoch(loader: Loader, recipe: Recipe, epoch: int, *, skip: int = 0) -> Iterator[Batch]:
    """Returns the batches of an epoch; a step that is recorded makes their images itself."""
    batches = loader.planned if recipe.cuda_graph is True else loader.epoch
    return batches(epoch, skip=skip)


def _steps(
    loader: Loader,
    recipe: Recipe,
    shapes: Iterable[Shape],
    waits: Waits,
    ranks: Ranks,
    position: Position,
    micro_batches: Iterator[Batch],
    before: list[Batch],
) -> Generator[tuple[Shape, Group]]:
    """Yields the shape and the samples of each optimizer step, epoch after epoch.

    An epoch's last group may be ragged: fewer micro-batches, the last of them smaller.
    """
    epoch, left, _ = position
    share = ranks.share(recipe.samples_per_step)
    for shape in shapes:
        if left == 0:
            # Also lets the loader see its epoch end, without which it would restart its workers.
            rest = next(micro_batches, None)
            assert rest is None, "an epoch has no more batches than its number of samples"
            epoch += 1
            micro_batches, left = waits.over(_epoch(loader, recipe, epoch)), loader.num_in(epoch)
        num_samples = min(recipe.samples_per_step * shape.growth, left)
        left -= num_samples
        group = Group(num_samples, micro_batches, share.counts(num_samples))
        own = islice(micro_batches, group.num_batches(recipe, ranks))
        # Some ranks may have no micro-batch of a ragged group. They get the one before as a
        # stand-in, because gradients are averaged by all or none.
        batches = own if ranks.size == 1 else _or_stand_in(own, before)
        yield shape, group._replace(micro_batches=batches)


def _or_stand_in(own: Iterator[Batch], before: list[Batch]) -> Iterator[Batch]:
    """Yields a rank's micro-batches, or the one that it had before; `before` remembers it."""
    first = next(own, None)
    if first is None:
        yield from before
        return
    for before[:] in ([batch] for batch in chain([first], own)):
        yield before[0]
