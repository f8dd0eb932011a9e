"""The file of a trained network: what is in it, and the network that it becomes again."""

import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from helpers.making import make_run
from helpers.training.tiny import CPU, make_images, make_splits, make_workload, to_end
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.models import MODELS
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import RunResult, Status
from tune_speed.core.version import installed_version
from tune_speed.data.base import Images
from tune_speed.data.loaders.resident import eval_batches
from tune_speed.data.split import Splits
from tune_speed.training.build import Job, view_of
from tune_speed.training.evaluate import evaluate
from tune_speed.training.loop import train
from tune_speed.training.recipe import Recipe
from tune_speed.training.saved_model import (
    ModelFacts,
    SavedModel,
    is_left,
    keep_in,
    read_model,
    save_model,
)
from tune_speed.training.step.step import AUTOCAST_DTYPES
from tune_speed.training.trial import KeepWeights

SPLITS = make_splits(num_train=96, num_validation=60)
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16 and channels_last": {"precision": "bf16", "channels_last": True},
    "half": {"precision": "half"},
    "ema": {"speedups": {"averaging": {"ema": {"half_life": 0.5, "every": 1}}}},
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
    "channels_first": {"channels_last": False},
    "resizing": {"speedups": {"resolution": "progressive_resizing"}},
}


def make_recipe(**changes: Any) -> Recipe:
    fields = {"optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1.0, "batch_size": 16, **changes}
    return Recipe.model_validate({"model": {"resnet": {"depth": 8}}, **fields})


def job_of(recipe: Recipe, splits: Splits = SPLITS) -> Job:
    return Job(make_workload(), recipe, splits, seed=1, device=CPU)


def facts_of(recipe: Recipe, splits: Splits = SPLITS) -> ModelFacts:
    return ModelFacts.of(job_of(recipe, splits), 0.5)


def logits_in_training(recipe: Recipe, splits: Splits, network: nn.Module) -> Tensor:
    """Returns the logits of the validation part as the run's evaluations compute them."""
    dtype = AUTOCAST_DTYPES[recipe.precision]
    batches = eval_batches(splits.validation, view_of(recipe, splits), batch_size=60, device=CPU)
    was_training = network.training
    network.eval()
    with torch.inference_mode(), torch.autocast("cpu", dtype, enabled=dtype is not None):
        logits = [recipe.speedups.predict(network, images).float() for images, _ in batches]
    network.train(was_training)
    return torch.cat(logits)


def trained(recipe: Recipe, file: Path, splits: Splits = SPLITS) -> tuple[RunResult, Tensor]:
    """Returns a run that left its network in `file`, and its last evaluation's logits."""
    job, seen = job_of(recipe, splits), list[Tensor]()

    def keep(run: RunResult, network: nn.Module) -> None:
        seen.append(logits_in_training(recipe, splits, network))
        save_model(KeepWeights(file=str(file), since=0.0), job, run, network)

    run = to_end(train(job, on_end=keep))
    return run, seen[0]


def windows_of(model: SavedModel, images: Images) -> Tensor:
    return model.windows(np.array(images.pixels[:]), images.sizes)


def assert_same(file: Path, run: RunResult, logits: Tensor, splits: Splits = SPLITS) -> SavedModel:
    model = SavedModel.read(file, CPU)
    with torch.inference_mode():
        ours = model(windows_of(model, splits.validation))
    assert torch.equal(ours, logits)
    labels = torch.from_numpy(splits.validation.labels)
    final = run.final
    assert final is not None and final.loss is not None
    assert float(functional.cross_entropy(ours, labels)) == pytest.approx(final.loss, rel=1e-6)
    batch = [(windows_of(model, splits.validation), labels)]
    assert evaluate(model, batch, device=CPU, autocast_dtype=None).accuracy == final.accuracy
    assert (model.facts.metric, model.facts.value) == ("accuracy", final.accuracy)
    return model


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_network_gives_the_logits_of_its_last_evaluation(name: str, tmp_path: Path) -> None:
    run, logits = trained(make_recipe(**RECIPES[name]), tmp_path / "m.pt")
    assert_same(tmp_path / "m.pt", run, logits)


def in_boxes(images: Images) -> Images:
    """Returns images of three sizes in boxes that they do not fill."""
    sizes = np.array([(32, 32), (24, 30), (28, 20)])[np.arange(len(images.labels)) % 3]
    pixels = np.array(images.pixels)
    for image, (height, width) in zip(pixels, sizes, strict=True):
        image[height:] = image[:, width:] = 0
    return Images(pixels, images.labels, sizes)


@pytest.mark.parametrize("is_boxed", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "sizes",
    [{"image_size": 24, "crop_pct": 0.875}, {"image_size": 16, "eval_size": 20}, {"image_size": 8}],
)
def test_it_sees_the_crops_of_evaluations(
    sizes: dict[str, float], channels: int, is_boxed: bool, tmp_path: Path
) -> None:
    parts = [make_images(n, size=32, channels=channels, seed=n) for n in (24, 18)]
    first, held = map(in_boxes, parts) if is_boxed else parts
    splits = make_splits(channels=channels)._replace(train=first, validation=held, test=held)
    run, logits = trained(make_recipe(**sizes), tmp_path / "m.pt", splits)
    model = assert_same(tmp_path / "m.pt", run, logits, splits)
    side = sizes.get("eval_size", sizes["image_size"])
    assert model.window_shape == (channels, side, side)


def test_published_weights_are_not_needed_again(tmp_path: Path) -> None:
    start = tmp_path / "w.pt"
    torch.save(timm.create_model("test_resnet", num_classes=7, in_chans=1).state_dict(), start)
    recipe = make_recipe(model={"timm": {"name": "test_resnet", "weights_file": str(start)}})
    held = make_images(18, size=32)
    splits = make_splits()._replace(validation=held, train=make_images(24, size=32))
    run, logits = trained(recipe, tmp_path / "m.pt", splits)
    start.unlink()
    found = assert_same(tmp_path / "m.pt", run, logits, splits)
    assert found.facts.normalisation == run.normalisation


def test_others_read_the_file_without_this_package(tmp_path: Path) -> None:
    trained(make_recipe(image_size=16, crop_pct=0.9), tmp_path / "m.pt")
    found = torch.load(tmp_path / "m.pt", weights_only=True)
    weights = found.pop("weights")
    assert all(map(torch.is_tensor, weights.values()))
    plain = json.loads(json.dumps(found))
    assert plain["class_names"] == ["0", "1", "2"] and plain["shape"] == [6, 6, 1]
    assert plain["recipe"]["image_size"] == 16 and plain["crop_pct"] == 0.9
    assert plain["normalisation"]["mean"] == list(SPLITS.mean)
    assert plain["environment"]["torch"] == installed_version("torch")


def changed(file: Path, **changes: Any) -> Path:
    torch.save({**torch.load(file, weights_only=True), **changes}, file)
    return file


def refused(file: Path) -> str:
    with pytest.raises(ConfigError) as error:
        SavedModel.read(file, CPU)
    assert str(file) in str(error.value) and "--save" in str(error.value)
    return str(error.value)


def test_what_is_no_saved_network_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    trained(make_recipe(), file)
    whole = file.read_bytes()
    other = make_recipe(model={"plain_cnn": {}}).model_dump(mode="json")
    for changes in (
        {"recipe": other},
        {"recipe": {}},
        {"format": "tune_speed.model.2"},
        {"shape": [6, 6, 10**9]},
        {"weights": {"w": 1.0}},
        {"class_names": ["a", "b"]},
        {"unknown": 1},
    ):
        file.write_bytes(whole)
        refused(changed(file, **changes))
    for content in (b"", b"no model", whole[: len(whole) // 2]):
        file.write_bytes(content)
        refused(file)
    torch.save(nn.Linear(2, 2).state_dict(), file)
    assert "KeyError" in refused(file)
    assert "FileNotFoundError" in refused(tmp_path / "missing.pt")
    torch.save(partial(print, "ran"), file)
    assert "UnpicklingError" in refused(file)


def test_a_network_of_a_plugin_names_the_plugin_that_is_missing(tmp_path: Path) -> None:
    trained(make_recipe(), tmp_path / "m.pt")
    with pytest.raises(ConfigError, match="nets"):
        read_model(changed(tmp_path / "m.pt", plugins={"nets.py": "0" * 16}))


def left(keep: KeepWeights, run: RunResult) -> None:
    save_model(keep, job_of(make_recipe()), run, nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("time_s", "at_most_s", "is_kept"),
    [(1.0, None, True), (1.0, 1.0, True), (1.0, 0.9, False), (None, None, False)],
)
def test_of_a_search_a_run_is_kept_that_may_be_the_best(time_s, at_most_s, is_kept, tmp_path):
    run = make_run() if time_s else make_run(Status.MISSED)
    left(KeepWeights(file=str(tmp_path / "t.pt"), at_most_s=at_most_s), run)
    assert [path.name for path in tmp_path.iterdir()] == ["t.pt"] * is_kept


def test_of_several_runs_the_best_metric_is_kept_and_replaces_what_was_there(
    tmp_path: Path,
) -> None:
    file = tmp_path / "m.pt"
    left(KeepWeights(file=str(file), since=0.0), make_run(accuracy=0.99))
    os.utime(file, (1e9, 1e9))
    keep = keep_in(file)
    assert not is_left(keep), "it is of an earlier training"
    kept = []
    for accuracy, status in ((0.5, Status.MISSED), (0.7, Status.MISSED), (0.6, Status.MISSED)):
        left(keep, make_run(status, accuracy=accuracy))
        kept.append(read_model(file)[0].value)
    assert kept == [0.5, 0.7, 0.7] and is_left(keep)
    left(keep, make_run(Status.DIVERGED, accuracy=0.9))
    assert read_model(file)[0].value == 0.7


def test_a_file_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        keep_in(tmp_path / "none" / "m.pt")


def test_where_the_folder_is_not_visible_nothing_is_written(tmp_path: Path) -> None:
    left(KeepWeights(file=str(tmp_path / "far" / "t.pt")), make_run())
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_nothing_is_no_error(tmp_path, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with caplog.at_level(logging.WARNING):
        left(KeepWeights(file=str(tmp_path / "t.pt")), make_run())
    assert "No space left" in caplog.text and list(tmp_path.iterdir()) == []


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
    model = SavedModel(facts_of(recipe, make_splits(channels=3)), network, CPU)
    example = torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8)
    graph = torch.export.export(model, (example[:2],), dynamic_shapes=[{0: torch.export.Dim.AUTO}])
    program = graph.module()
    for images in (example, example[:1]):
        assert torch.equal(program(images), model(images))
