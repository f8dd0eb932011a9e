"""Networks and techniques, tried on shapes alone."""

from pathlib import Path
from typing import Any

import pytest

from tune_speed.training.precheck import answers, misfits
from tune_speed.training.recipe import Recipe

DATA: dict[str, Any] = {"image_shape": (32, 32, 3), "num_classes": 10, "num_train": 100}
PLAIN: dict[str, Any] = {"optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1, "batch_size": 2}


def recipe(model: Any, **speedups: Any) -> Recipe:
    return Recipe.model_validate({**PLAIN, "model": model, "speedups": speedups})


@pytest.mark.parametrize(
    ("model", "speedups"),
    [
        ("resnet50", {"depth": "stochastic_depth"}),
        ({"torchvision": {"name": "resnet18"}}, {"depth": "stochastic_depth"}),
        ("preact_resnet", {"depth": "boosted", "init": "kaiming"}),
        ("vgg16_bn", {"backward": "meprop", "dropout": "dropout_removal"}),
        ("mobilenet", {"resolution": "progressive_resizing", "loss": "focal"}),
        ("vit", {}),
    ],
)
def test_what_can_be_trained_fits(model: Any, speedups: dict[str, Any]) -> None:
    assert misfits(recipe(model, **speedups), **DATA) == ()


@pytest.mark.parametrize(
    ("model", "speedups", "path"),
    [
        ({"alexnet": {"stem": "native"}}, {}, "model"),
        ("plain_cnn", {"depth": "stochastic_depth"}, "speedups.depth.stochastic_depth"),
        ("resnet20", {"backward": "meprop"}, "speedups.backward.meprop"),
        ("resnet20", {"dropout": "dropout_removal"}, "speedups.dropout.dropout_removal"),
        ("vgg16_bn", {"resolution": "progressive_resizing"}, "speedups.resolution"),
        ("vit", {"resolution": "progressive_resizing"}, "speedups.resolution"),
    ],
)
def test_what_cannot_be_is_named(model: Any, speedups: dict[str, Any], path: str) -> None:
    [problem] = misfits(recipe(model, **speedups), **DATA)
    assert problem.path.startswith(path) or problem.path.startswith(f"recipe.{path}")
    assert problem.must.startswith("must ")


def test_question_of_two_recipes_has_two_answers() -> None:
    models = ["resnet20", {"alexnet": {"stem": "native"}}]
    question = {**DATA, "recipes": [{**PLAIN, "model": model} for model in models]}
    fits, [problem] = answers(question)
    assert fits == []
    assert problem["path"].endswith("model") and "32" in problem["must"]


def test_a_weights_file_that_is_missing_is_named(tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    named = recipe({"resnet20": {"weights_file": str(file)}})
    [problem] = misfits(named, **DATA)
    assert (problem.path, problem.given) == ("model.weights_file", str(file))
    file.touch()
    assert misfits(named, **DATA) == ()
