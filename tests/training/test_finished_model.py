"""A trial's network, rebuilt from its record and its weights, scores as the trial did."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from making import make_record, make_run
from torch import nn
from torch.nn import functional
from training import CPU, make_splits, make_workload, to_end

from tune_speed.components.models import MODELS
from tune_speed.core.records import Status, TrialRecord
from tune_speed.training.build import Job
from tune_speed.training.finished_model import (
    FinishedModel,
    accuracy_of,
    finished_model,
    load_weights,
    save_weights,
)
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import KeepWeights

SPLITS = make_splits(num_train=96, num_validation=60)
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16 and channels_last": {"precision": "bf16", "channels_last": True},
    "half": {"precision": "half"},
    "ema": {"speedups": {"averaging": "ema"}},
    "tta": {"speedups": {"views": {"tta": {"views": 6}}}},
    "whitening": {"speedups": {"init": "whitening"}},
    "kaiming": {"speedups": {"init": "kaiming"}},
    "boosted": {"speedups": {"depth": {"boosted": {"stages": 3}}}},
    "stochastic depth": {"speedups": {"depth": "stochastic_depth"}},
    "dropout removal": {
        "speedups": {"dropout": "dropout_removal"},
        "model": {"timm": {"name": "resnet10t", "stem": "cifar", "drop_rate": 0.1}},
    },
    "meprop": {"speedups": {"backward": "meprop"}, "model": {"vit": {}}},
    "resizing": {"speedups": {"resolution": "progressive_resizing"}},
}


def make_recipe(**changes: Any) -> Recipe:
    fields = {"optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1.0, "batch_size": 16, **changes}
    return Recipe.model_validate({"model": {"resnet": {"depth": 8}}, **fields})


def trained(recipe: Recipe, file: Path) -> TrialRecord:
    """Returns the record of a training whose last evaluation counts as a hit."""

    def keep(result: Any, model: nn.Module) -> None:
        hit = result.model_copy(update={"time_to_target_s": 1.0})
        save_weights(KeepWeights(file=str(file)), hit, model)

    run = to_end(
        train(Job(make_workload(), recipe, SPLITS, seed=1, device=CPU), on_end=keep),
    )
    changes = {"recipe": recipe.model_dump(mode="json"), "runs": (run,)}
    return make_record().model_copy(update=changes)


@pytest.mark.parametrize("name", RECIPES)
def test_a_rebuilt_model_scores_as_in_the_trial(name: str, tmp_path: Path) -> None:
    record = trained(make_recipe(**RECIPES[name]), tmp_path / "t.pt")
    model = finished_model(record, tmp_path / "t.pt", SPLITS)
    final, pixels, labels = record.runs[0].final, *map(torch.from_numpy, SPLITS.validation)
    with torch.inference_mode():
        logits = model(pixels.permute(0, 3, 1, 2))
    assert final is not None and final.loss is not None
    assert float(functional.cross_entropy(logits, labels)) == pytest.approx(final.loss, rel=1e-6)
    assert accuracy_of(model, SPLITS.validation, batch_size=60, device=CPU) == final.accuracy


def test_weights_of_another_recipe_are_refused(tmp_path: Path) -> None:
    record = trained(make_recipe(), tmp_path / "t.pt")
    other = make_recipe(model={"plain_cnn": {}}).model_dump(mode="json")
    with pytest.raises(RuntimeError, match="state_dict"):
        finished_model(record.model_copy(update={"recipe": other}), tmp_path / "t.pt", SPLITS)


@pytest.mark.parametrize(
    ("time_s", "at_most_s", "is_kept"),
    [(1.0, None, True), (1.0, 1.0, True), (1.0, 0.9, False), (None, None, False)],
)
def test_weights_are_kept_of_a_run_that_may_be_the_best(
    time_s: float | None, at_most_s: float | None, is_kept: bool, tmp_path: Path
) -> None:
    run = make_run() if time_s else make_run(Status.MISSED)
    keep = KeepWeights(file=str(tmp_path / "t.pt"), at_most_s=at_most_s)
    save_weights(keep, run, nn.Linear(2, 2))
    assert [path.name for path in tmp_path.iterdir()] == ["t.pt"] * is_kept


def test_where_the_folder_is_not_visible_nothing_is_written(tmp_path: Path) -> None:
    save_weights(KeepWeights(file=str(tmp_path / "far" / "t.pt")), make_run(), nn.Linear(2, 2))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_nothing_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with caplog.at_level(logging.WARNING):
        save_weights(KeepWeights(file=str(tmp_path / "t.pt")), make_run(), nn.Linear(2, 2))
    assert "No space left" in caplog.text and list(tmp_path.iterdir()) == []


def test_nothing_in_a_weights_file_is_run(tmp_path: Path) -> None:
    torch.save(partial(print, "ran"), tmp_path / "t.pt")
    with pytest.raises(Exception, match=r"[Ww]eights_only|Unsupported"):
        load_weights(tmp_path / "t.pt")


FIELDS = {"timm": {"name": "resnet14t", "stem": "cifar"}, "torchvision": {"name": "resnet18"}}
FEWER_BLOCKS: dict[str, dict[str, Any]] = {
    "densenet121": {"block_config": (1, 2), "growth_rate": 8}
}
"""What timm takes in place of the blocks of a network that has many of the same."""
# Left out: those whose class and blocks another has, with fewer layers.
FAMILIES = sorted(MODELS.keys() - {"resnet50", "vgg19", "vgg19_bn"})


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore")  # torch's own, while it draws.
def test_every_family_of_networks_becomes_a_graph(name: str) -> None:
    size = 32
    if name in FEWER_BLOCKS:
        network = timm.create_model(name, num_classes=10, **FEWER_BLOCKS[name])
    else:
        fields = FIELDS.get(name, {})
        network = MODELS[name](**fields).build(in_channels=3, num_classes=10, image_size=size)
    recipe = make_recipe(speedups={"views": "tta"})
    model = FinishedModel(network, recipe, mean=(0.5,) * 3, std=(0.2,) * 3).eval()
    model.requires_grad_(False)
    example = torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8)
    graph = torch.export.export(model, (example[:2],), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    program = graph.module()
    for images in (example, example[:1]):
        assert torch.equal(program(images), model(images))
