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
    """Returns shape and samples of the steps after `num_done`, whose place is found at once."""
    shapes = (shape for shape, num_steps in step_schedule for _ in range(num_steps))
    source = _Source(loader, recipe, waits, ranks)
    position = source.position_after(islice(shapes, num_done))
    # Only the last batch that was had is drawn again and dropped, so that what an epoch begins with
    # is not paid for twice on the training clock.
    had: list[Batch] = []
    rest: Iterator[Batch] = iter(())
    if position.num_batches:
        rest = source.epoch(position.epoch, skip=position.num_batches - 1)
        had = [next(rest)]
        rest = waits.over(rest)
    return source.steps(shapes, position, rest, had)


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


class _Source:
    """What a run's steps are made of."""

    def __init__(self, loader: Loader, recipe: Recipe, waits: Waits, ranks: Ranks) -> None:
        self._loader, self._recipe, self._waits, self._ranks = loader, recipe, waits, ranks
        mixed_images = recipe.augmentation.mixed_images
        self._share = ranks.share(recipe.samples_per_step, together=mixed_images)

    def position_after(self, shapes: Iterable[Shape]) -> Position:
        """Returns where the steps of these shapes have led."""
        position = Position()
        for shape in shapes:
            epoch, left, num_batches = position
            if left == 0:
                epoch, left, num_batches = epoch + 1, self._loader.num_in(epoch + 1), 0
            group = self._group(shape, left, ())
            num_batches += group.num_batches(self._recipe, self._ranks)
            position = Position(epoch, left - group.num_samples, num_batches)
        return position

    def epoch(self, epoch: int, *, skip: int = 0) -> Iterator[Batch]:
        """Returns the batches of an epoch; a step that is recorded makes their images itself."""
        is_recorded = self._recipe.cuda_graph is True
        batches = self._loader.planned if is_recorded else self._loader.epoch
        return batches(epoch, skip=skip)

    def steps(
        self,
        shapes: Iterable[Shape],
        position: Position,
        micro_batches: Iterator[Batch],
        before: list[Batch],
    ) -> Generator[tuple[Shape, Group]]:
        """Yields the shape and the samples of each optimizer step, epoch after epoch.

        An epoch's last group may be ragged: fewer micro-batches, the last of them smaller.
        """
        epoch, left, _ = position
        for shape in shapes:
            if left == 0:
                # Also lets the loader see its epoch end, without which it would restart its
                # workers.
                rest = next(micro_batches, None)
                assert rest is None, "an epoch has no more batches than its number of samples"
                epoch += 1
                micro_batches = self._waits.over(self.epoch(epoch))
                left = self._loader.num_in(epoch)
            self._loader.show_at(shape.height, shape.width)
            group = self._group(shape, left, micro_batches)
            left -= group.num_samples
            own = islice(micro_batches, group.num_batches(self._recipe, self._ranks))
            # Some ranks may have no micro-batch of a ragged group. They get the one before as a
            # stand-in, because gradients are averaged by all or none.
            batches = own if self._ranks.size == 1 else _or_stand_in(own, before)
            yield shape, group._replace(micro_batches=batches)

    def _group(self, shape: Shape, left: int, micro_batches: Iterable[Batch]) -> Group:
        num_samples = min(self._recipe.samples_per_step * shape.growth, left)
        return Group(num_samples, micro_batches, self._share.counts(num_samples))


def _or_stand_in(own: Iterator[Batch], before: list[Batch]) -> Iterator[Batch]:
    """Yields a rank's micro-batches, or the one that it had before; `before` remembers it."""
    first = next(own, None)
    if first is None:
        yield from before
        return
    for before[:] in ([batch] for batch in chain([first], own)):
        yield before[0]
