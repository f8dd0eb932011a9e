"""Whether networks take the images, and techniques the networks: tried before any trial starts.

    python -m tune_speed.training.precheck < question.json > answer.json

A process of its own, as a search's driver is free of torch.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from tune_speed.components.plugins import registry
from tune_speed.core.errors import ConfigError, DataError, Problem, first_line
from tune_speed.training.build import make_ready_for_fine_tuning
from tune_speed.training.recipe import Recipe


def misfits(
    recipe: Recipe,
    *,
    image_shape: tuple[int, int, int],
    num_classes: int,
    num_train: int,
    are_several: bool = False,
) -> tuple[Problem, ...]:
    """Returns why the recipe's network cannot train on `num_train` images, stored as (H, W, C).

    Or on labels, of which an image has `are_several`.
    """
    height, width, channels = recipe.train_shape(image_shape)
    image_size, file = max(height, width), recipe.model.weights_file
    if file is not None and not os.path.isfile(file):
        return (
            Problem(path="model.weights_file", must="must name a file that exists", given=file),
        )
    try:
        recipe.check_labels(num_classes=num_classes, are_several=are_several)
        recipe.model.check(in_channels=channels, num_classes=num_classes, image_size=image_size)
        # torch's meta device has shapes alone: no memory, no weights.
        with torch.device("meta"):
            model = recipe.model.network(
                in_channels=channels, num_classes=num_classes, image_size=image_size
            )
            model = recipe.speedups.change_model(model, num_classes=num_classes, seed=0)
            make_ready_for_fine_tuning(model, recipe)
        step_schedule = recipe.step_schedule(num_train=num_train, height=height, width=width)
        seen = {shape[:2] for shape, _ in step_schedule} | {recipe.eval_shape(image_shape)[:2]}
        for size in sorted(seen - {(height, width)}):
            _try(model, (2, channels, *size))
    except ConfigError as error:
        return error.problems or (Problem(path="model", must=str(error)),)
    # What the meta device cannot do, or weights that do not match, the trial itself will say.
    except (NotImplementedError, DataError):
        return ()
    return ()


def _try(model: nn.Module, size: tuple[int, ...]) -> None:
    try:
        with torch.device("meta"), torch.no_grad():
            model.eval()(torch.zeros(size))
    except NotImplementedError:
        raise
    # Libraries refuse images by RuntimeError, ValueError, AssertionError and others.
    except Exception as error:
        raise too_small(size[2], size[3], error, path="speedups.resolution") from error


def too_small(height: int, width: int, error: Exception, *, path: str) -> ConfigError:
    """Returns what a user reads whose network refuses images of that size [pixels]."""
    return ConfigError.of(
        path,
        f"must show the network images that it can take, but {height}x{width} pixels fail"
        f" with {first_line(error)}",
        hint="Begin with larger images, or take another model.",
    )


def answers(question: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    data = question | {"image_shape": tuple(question["image_shape"])}
    for tree in data.pop("recipes"):
        found = misfits(Recipe.model_validate_json(json.dumps(tree)), **data)
        yield [asdict(problem) for problem in found]


if __name__ == "__main__":
    registry.load_from_environment()
    print(json.dumps(list(answers(json.load(sys.stdin)))))
