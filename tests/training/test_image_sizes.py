"""A training at sizes of the recipe's own, on stored images of several sizes."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.training import tiny
from helpers.training.tiny import make_recipe, make_splits
from torch import Tensor, nn

from tune_speed.components.models.base import ModelConfig
from tune_speed.core.errors import ConfigError
from tune_speed.data.base import Images
from tune_speed.data.split import Splits
from tune_speed.study.file import parse_recipe
from tune_speed.training.precheck import misfits

SIZES = [(20, 14), (14, 20), (16, 16)]


def photos(count: int, seed: int) -> Images:
    sizes = np.array([SIZES[number % 3] for number in range(count)])
    pixels = np.zeros((count, 20, 20, 1), np.uint8)
    rng, labels = np.random.default_rng(seed), np.arange(count) % tiny.NUM_CLASSES
    for box, (height, width), label in zip(pixels, sizes, labels, strict=True):
        box[:height, :width] = rng.integers(0, 120, (height, width, 1))
        box[: height : 1 + label, :width] += 100
    return Images(pixels, labels, sizes)


@pytest.fixture
def splits() -> Splits:
    return make_splits()._replace(
        train=photos(24, 0), validation=photos(9, 1), test=photos(9, 2), mean=(0.4,), std=(0.3,)
    )


class Watching(tiny.Tiny):
    """Notes the sizes of images that it sees."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        seen.clear()
        return Network(self, in_channels, num_classes)


seen: dict[bool, list[tuple[int, int]]] = {}


class Network(tiny.TinyNetwork):
    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        seen.setdefault(self.training, []).append((height, width))
        return super().forward(images)


def sizes_seen(splits: Splits, **recipe: Any) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    result = tiny.run(make_recipe(model=Watching(), image_size=12, **recipe), splits)
    assert result.status in ("missed", "reached"), result.traceback
    # Progressive resizing asks a network first whether it takes images of several sizes.
    return set(seen[True]), set(seen[False]) - {(32, 32), (64, 64)}


def test_a_run_trains_at_its_size_and_is_evaluated_at_another(splits: Splits) -> None:
    assert sizes_seen(splits) == ({(12, 12)}, {(12, 12)})
    crop = {"crop": {"random_resized": {}}, "flip": "random"}
    assert sizes_seen(splits, augmentation=crop, eval_size=14, crop_pct=0.9)[1] == {(14, 14)}


@pytest.mark.parametrize("augmentation", [{}, {"pad": 2}])
def test_progressive_resizing_resizes_the_same_windows(splits, augmentation):
    resizing = {"progressive_resizing": {"initial_scale": 0.5, "multiple": 2}}
    trained, evaluated = sizes_seen(
        splits, epochs=6, augmentation=augmentation, speedups={"resolution": resizing}
    )
    assert (6, 6) in trained and (12, 12) in trained and evaluated == {(12, 12)}


def test_runs_with_the_same_seed_are_the_same(splits: Splits) -> None:
    crop = {"crop": {"random_resized": {}}, "flip": "random"}
    losses = [
        [
            e.loss
            for e in tiny.run(make_recipe(image_size=12, augmentation=crop), splits).evaluations
        ]
        for _ in range(2)
    ]
    assert losses[0] == losses[1] and len(set(losses[0])) > 1


class Sized(ModelConfig):
    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        head = nn.Linear(image_size * image_size * in_channels, num_classes)
        return nn.Sequential(nn.Flatten(), head)


@pytest.mark.parametrize(("sizes", "count"), [({}, 0), ({"eval_size": 16}, 1)])
def test_a_network_of_one_size_must_take_images_of_evaluations_too(sizes, count):
    recipe = make_recipe(model=Sized(), image_size=12, **sizes)
    problems = misfits(recipe, image_shape=(20, 20, 1), num_classes=3, num_train=24)
    assert len(problems) == count


RECIPE = """
workload:
  dataset: {name: image_folder, root: photos%s}
  target: 0.9
  max_train_s: 60
recipe: {model: resnet20, optimizer: {sgd: {lr: 0.1}}, epochs: 1, batch_size: 8%s}
"""


@pytest.mark.parametrize(
    ("dataset", "recipe", "stored"),
    [
        ("", ", image_size: 128", 148),
        ("", ", image_size: 160, eval_size: 224", 258),
        (", store_size: 100", ", image_size: 128", 100),
    ],
)
def test_images_are_stored_a_little_larger_than_any_recipe_shows_them(dataset, recipe, stored):
    file = parse_recipe(RECIPE % (dataset, recipe), file="recipe.yaml", check_data=False)
    assert file.workload.dataset.model_dump()["store_size"] == stored


def test_the_normalised_images_of_a_batch_do_not_depend_on_its_size(splits: Splits) -> None:
    torch.manual_seed(0)
    found = [
        tiny.run(make_recipe(batch_size=8, accumulation_steps=n, image_size=12), splits)
        for n in (1, 3)
    ]
    assert found[0].evaluations[0].loss == found[1].evaluations[0].loss


def test_images_of_several_sizes_are_refused_without_a_size_to_train_at(splits: Splits) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny.run(make_recipe(), splits)
    assert [problem.path for problem in caught.value.problems] == ["recipe.image_size"]
