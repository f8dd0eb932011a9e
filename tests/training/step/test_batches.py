from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training.tiny import CPU, make_recipe, make_splits, make_workload, to_end
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from tune_speed.components.speedups.base import Shape
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Batching, Loader
from tune_speed.data.loaders.configs import Resident
from tune_speed.data.orders import SampleOrder
from tune_speed.runtime.clock import Waits
from tune_speed.training.build import Job, open_loader, step_schedule_of
from tune_speed.training.loop import train
from tune_speed.training.ranks import ALONE, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.batches import open_steps, samples_of_steps

SMALL, LARGE = Shape(2, 2), Shape(2, 2, growth=2)
Step = tuple[Shape, int, list[list[int]]]
"""Shape and samples of a step, and the numbers of the images in each of its micro-batches."""


def open_numbered(recipe: Recipe, *, num_images: int, ranks: Ranks = ALONE) -> Loader:
    images = Images(np.zeros((num_images, 2, 2, 1), np.uint8), np.arange(num_images))
    order, share = (
        SampleOrder(num_images, int(recipe.batch_size), 0),
        ranks.share(recipe.samples_per_step),
    )
    return Resident().open(images, Batching(order, (0.5,), (1.0,), CPU, share=share))


def steps(
    recipe: Recipe,
    schedule: Sequence[tuple[Shape, int]],
    *,
    num_images: int,
    ranks: Ranks = ALONE,
    num_done: int = 0,
    waits: Waits | None = None,
) -> Iterable[Step]:
    loader = open_numbered(recipe, num_images=num_images, ranks=ranks)
    opened = open_steps(loader, recipe, schedule, waits or Waits(), ranks=ranks, num_done=num_done)
    for shape, group in opened:
        yield shape, group.num_samples, [labels.tolist() for _, labels in group.micro_batches]


def test_steps_take_each_image_once_an_epoch_in_full_micro_batches_but_the_last() -> None:
    recipe = make_recipe(batch_size=4, accumulation_steps=2)
    found = list(steps(recipe, [(SMALL, 3), (LARGE, 3)], num_images=19))
    assert [shape for shape, _, _ in found] == [SMALL] * 3 + [LARGE] * 3
    # Two epochs of 19: steps of 8, 8 and 3; then of twice 8, and 3. A third one begins.
    assert [count for _, count, _ in found] == [8, 8, 3, 16, 3, 16]
    sizes = [[len(batch) for batch in batches] for _, _, batches in found]
    assert sizes == [[4, 4], [4, 4], [3], [4, 4, 4, 4], [3], [4, 4, 4, 4]]
    numbers = [number for _, _, batches in found for batch in batches for number in batch]
    assert sorted(numbers[:19]) == sorted(numbers[19:38]) == list(range(19))
    assert numbers[:19] != numbers[19:38]


def test_samples_of_steps_are_known_before_any_is_taken() -> None:
    recipe, schedule = make_recipe(batch_size=4, accumulation_steps=2), [(SMALL, 3), (LARGE, 3)]
    loader = open_numbered(recipe, num_images=19)
    counted = [(shape, count) for shape, count, _ in steps(recipe, schedule, num_images=19)]
    assert list(samples_of_steps(loader, recipe, schedule)) == counted


@given(
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from([SMALL, LARGE]), st.integers(1, 4)), max_size=4),
    st.data(),
)
def test_run_that_resumes_takes_the_steps_that_are_left(
    num_images: int,
    batch_size: int,
    accumulation_steps: int,
    schedule: list[tuple[Shape, int]],
    data: st.DataObject,
) -> None:
    recipe = make_recipe(batch_size=batch_size, accumulation_steps=accumulation_steps)
    whole = list(steps(recipe, schedule, num_images=num_images))
    assert len(whole) == sum(count for _, count in schedule)
    num_done = data.draw(st.integers(0, len(whole)))
    rest = list(steps(recipe, schedule, num_images=num_images, num_done=num_done))
    assert rest == whole[num_done:]


@pytest.mark.parametrize("num_done", [0, 1, 2, 3])
def test_devices_share_the_samples_of_each_step(num_done: int) -> None:
    recipe = make_recipe(batch_size=3, devices=2)
    schedule = [(SMALL, 5)]
    # Epochs of 13 in steps of 6: the last one has a single image, so one device has none.
    alone = list(steps(make_recipe(batch_size=6), schedule, num_images=13))
    both = [
        list(steps(recipe, schedule, num_images=13, ranks=Ranks(rank, 2), num_done=num_done))
        for rank in range(2)
    ]
    seen: list[list[list[int]]] = [[[]], [[]]]
    for (_, count, whole), *shares in zip(alone[num_done:], *both, strict=True):
        assert [share[1] for share in shares] == [count, count]
        counts = [count - count // 2, count // 2]
        for rank, (_, _, batches) in enumerate(shares):
            if counts[rank]:
                assert [len(batch) for batch in batches] == [counts[rank]]
                seen[rank] = batches
            else:
                # Its last micro-batch stands in, whether it had it in this run or before.
                assert len(batches) == 1
                assert seen[rank] in ([[]], batches)
        parts = [b for n, (_, _, bs) in zip(counts, shares, strict=True) if n for b in bs]
        assert sorted(chain(*parts)) == sorted(chain(*whole))


def test_waits_for_batches_are_counted() -> None:
    class Counting(Waits):
        def __init__(self) -> None:
            readings = iter(range(1000))
            super().__init__(now=lambda: float(next(readings)))

    waits = Counting()
    recipe = make_recipe(batch_size=4)
    assert len(list(steps(recipe, [(SMALL, 3)], num_images=12, waits=waits))) == 3
    assert waits.waited_s == 3.0
    resumed = Counting()
    list(steps(recipe, [(SMALL, 3)], num_images=12, num_done=1, waits=resumed))
    assert resumed.waited_s == 2.0


def test_first_epoch_is_the_loaders_epoch_zero_and_the_next_follows() -> None:
    asked: list[int] = []

    class Loader:
        def num_in(self, epoch: int) -> int:
            return 4

        def epoch(self, epoch: int, *, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
            asked.append(epoch)
            yield from [(torch.zeros(2), torch.zeros(2))] * (2 - skip)

        def show_at(self, height: int, width: int) -> None:
            assert (height, width) == SMALL[:2]

    loader: Any = Loader()
    for num_done, epochs in ((0, [0, 1, 2]), (1, [0, 1, 2]), (2, [0, 1, 2]), (3, [1, 2])):
        asked.clear()
        opened = open_steps(
            loader, make_recipe(batch_size=2), [(SMALL, 6)], Waits(), num_done=num_done
        )
        for _, group in opened:
            assert len(list(group.micro_batches)) == 1
        assert asked == epochs


DROPS = {"drop_last": True, "batch_size": 2, "accumulation_steps": 4}


def sizes(recipe: Recipe, *, ranks: Ranks = ALONE, num_done: int = 0) -> list[list[int]]:
    splits = make_splits(20)
    share = ranks.share(recipe.samples_per_step)
    loader = open_loader(recipe, splits.train, splits, seed=0, device=CPU, share=share)
    schedule = step_schedule_of(recipe, splits)
    steps = open_steps(loader, recipe, schedule, Waits(), ranks=ranks, num_done=num_done)
    return [[len(labels) for _, labels in group.micro_batches] for _, group in steps]


def test_an_epoch_is_its_whole_steps() -> None:
    assert sizes(make_recipe(**DROPS)) == [[2] * 4] * 4
    kept = make_recipe(**{**DROPS, "drop_last": False})
    assert sizes(kept) == [[2] * 4, [2] * 4, [2] * 2] * 2


@pytest.mark.parametrize("num_done", range(5))
def test_a_run_that_resumes_takes_the_whole_steps_that_are_left(num_done: int) -> None:
    assert sizes(make_recipe(**DROPS), num_done=num_done) == [[2] * 4] * (4 - num_done)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_of_several_devices_has_its_share_of_whole_steps(rank: int) -> None:
    recipe = make_recipe(drop_last=True, batch_size=4, devices=2)
    assert sizes(recipe, ranks=Ranks(rank, 2)) == [[4]] * 4


@pytest.mark.parametrize(
    ("num_train", "epochs", "steps"), [(20, 1.0, 2), (24, 1.0, 3), (23, 2.5, 5), (7, 3.0, 3)]
)
def test_steps_are_counted_without_the_ragged_ones(num_train, epochs, steps):
    assert make_recipe(drop_last=True, epochs=epochs).steps(num_train=num_train) == steps


@pytest.mark.parametrize(("batch_size", "accumulation_steps"), [(2, 4), (8, 1)])
def test_a_run_learns_from_whole_steps_alone_to_its_end(batch_size, accumulation_steps):
    recipe = make_recipe(
        drop_last=True, batch_size=batch_size, accumulation_steps=accumulation_steps
    )
    run = train(Job(make_workload(), recipe, make_splits(20), seed=0, device=CPU))
    result = to_end(run)
    assert (result.steps, result.samples) == (4, 32)
    assert result.final is not None and result.final.epoch == 32 / 20


def test_growing_batches_are_refused() -> None:
    growing: dict[str, Any] = {"speedups": {"batch_growth": "batch_stages"}}
    with pytest.raises(ValidationError, match="drop_last must be false with"):
        make_recipe(drop_last=True, **growing)


def test_a_run_of_a_version_without_it_is_resumed() -> None:
    tree = {"model": "resnet20", "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1, "batch_size": 8}
    assert "drop_last" not in Recipe.model_validate(tree).identity_fields()
    assert Recipe.model_validate({**tree, "drop_last": True}).identity_fields()["drop_last"]
