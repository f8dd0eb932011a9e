"""`drop_last`: an epoch's last optimizer step is left out where it would be a ragged one."""

from typing import Any

import pytest
from pydantic import ValidationError
from training import CPU, make_recipe, make_splits, make_workload, to_end

from tune_speed.runtime.training_clock import Waits
from tune_speed.training.build import Job, open_loader, step_schedule_of
from tune_speed.training.loop import train
from tune_speed.training.ranks import ALONE, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.batches import open_steps

DROPS = {"drop_last": True, "batch_size": 2, "accumulation_steps": 4}


def sizes(recipe: Recipe, *, ranks: Ranks = ALONE, num_done: int = 0) -> list[list[int]]:
    """Returns the sizes of the micro-batches of each step over 20 images."""
    splits = make_splits(20)
    share = ranks.share(recipe.samples_per_step)
    loader = open_loader(recipe, splits.train, splits, seed=0, device=CPU, share=share)
    schedule = step_schedule_of(recipe, splits)
    steps = open_steps(loader, recipe, schedule, Waits(), ranks=ranks, num_done=num_done)
    return [[len(labels) for _, labels in group.micro_batches] for _, group in steps]


def test_an_epoch_is_its_whole_steps() -> None:
    """Of 20 images, 16 in two steps; otherwise a third one has four."""
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
def test_steps_are_counted_without_the_ragged_ones(
    num_train: int, epochs: float, steps: int
) -> None:
    assert make_recipe(drop_last=True, epochs=epochs).steps(num_train=num_train) == steps


@pytest.mark.parametrize(("batch_size", "accumulation_steps"), [(2, 4), (8, 1)])
def test_a_run_learns_from_whole_steps_alone_to_its_end(
    batch_size: int, accumulation_steps: int
) -> None:
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
