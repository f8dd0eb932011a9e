import ast
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from helpers.data.files import encode, go_offline, publish, write_cifar, write_noise, write_parquet
from helpers.experiments.exports import (
    RECIPES,
    SGD,
    complaints,
    evaluations_of_ours,
    recipe_file,
    run_in_process,
    scores_of,
    scores_of_ours,
    small,
)
from helpers.making import make_record
from PIL import Image
from safetensors.torch import save_file
from torchvision.datasets import CIFAR10

from tune_speed.components.models import MODELS
from tune_speed.components.schedules import SCHEDULES
from tune_speed.core.errors import ConfigError
from tune_speed.core.words import Device
from tune_speed.experiments.exports.formats import exported
from tune_speed.experiments.exports.script import SCRIPT, script
from tune_speed.study.file import RecipeFile


def of_data(
    dataset: str, *, batch_size: int, more: str = "", model: str = "{resnet: {depth: 8}}"
) -> RecipeFile:
    return recipe_file(f"""
workload: {{dataset: {dataset}, target: 1.0, split: {{validation_frac: 0.2}}}}
recipe:
  model: {model}
  optimizer: {{sgd: {{lr: 0.1}}}}
  epochs: 2
  batch_size: {batch_size}
  {more}
""")


def written(file: RecipeFile) -> str:
    return script(file, origin="# of a test", path="train.py")


def assert_same_losses(file: RecipeFile, folder: Path, *, seed: int = 4, **near: float) -> None:
    theirs = scores_of(run_in_process(written(file), folder, "--seed", str(seed)))
    ours = [score.loss for score in scores_of_ours(file, seed=seed)]
    assert [score.loss for score in theirs] == pytest.approx(ours, **(near or {"abs": 2e-4}))


@pytest.mark.parametrize("name", RECIPES)
def test_script_gives_the_figures_of_the_package(name: str, tmp_path: Path) -> None:
    file = small(RECIPES[name])
    printed = run_in_process(written(file), tmp_path, "--seed", "5")
    theirs, ours = scores_of(printed), scores_of_ours(file, seed=5)
    assert [score.step for score in theirs] == [score.step for score in ours]
    assert len(ours) >= 2
    for score, own in zip(theirs, ours, strict=True):
        assert score.accuracy == pytest.approx(own.accuracy, abs=6e-5)
        assert score.loss == pytest.approx(own.loss, abs=2e-4 + 1e-4 * own.loss)


def test_recipes_have_every_schedule_that_a_script_knows() -> None:
    known = SCRIPT.only["recipe.lr_schedule"]
    assert set(known) == SCHEDULES.keys() - {"reduce_on_plateau"}
    assert [name for name in known if not any(name in text for text in RECIPES.values())] == []


def test_fp16_s_loss_is_scaled_as_the_package_does(tmp_path: Path) -> None:
    """On a CPU, for which files refuse it: it is slow there."""
    file = small(f"{SGD}\n  clip_norm: 1.0")
    scales = {"init_loss_scale": 512.0, "loss_scale_growth_steps": 3}
    recipe = file.recipe.model_copy(update={"precision": "fp16", **scales})
    file = replace(file, recipe=recipe)
    text = written(file)
    assert "init_scale=512.0, growth_interval=3" in text
    assert_same_losses(file, tmp_path, seed=1, abs=2e-3)


@pytest.mark.slow
def test_compiled_script_gives_the_figures_of_the_package(tmp_path: Path) -> None:
    file = small(f"{SGD}\n  compile: true")
    assert_same_losses(file, tmp_path, seed=1, rel=0.01)


def test_published_weights_are_the_package_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "mobilenetv3_small_050.lamb_in1k"
    go_offline(monkeypatch, tmp_path / "hub")
    publish(timm.create_model("mobilenetv3_small_050"), tmp_path / "hub", name=name)
    file = small(f"{SGD}\n  model: {{timm: {{name: {name}, pretrained: true, stem: cifar}}}}")
    assert_same_losses(file, tmp_path, seed=1, abs=2e-3)


def test_torchvision_s_published_weights_are_the_package_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_name = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.url.rsplit("/", 1)[1]
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    weights = torchvision.models.squeezenet1_1().state_dict()
    torch.save(weights, tmp_path / "hub" / "checkpoints" / file_name)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = small(f"{SGD}\n  model: {{squeezenet: {{pretrained: true}}}}")
    assert_same_losses(file, tmp_path, seed=1, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_resnet18_without_its_pool_gives_the_figures_of_the_package(
    library: str, tmp_path: Path
) -> None:
    adamw = "optimizer: {adamw: {lr: 0.001}}"
    file = small(f"{adamw}\n  model: {{{library}: {{name: resnet18, stem: cifar}}}}")
    assert_same_losses(file, tmp_path, seed=1)


@pytest.mark.parametrize("metric", ["macro_f1", "top5_accuracy"])
def test_target_s_own_metric_is_printed_as_the_package_measures_it(
    metric: str, tmp_path: Path
) -> None:
    file = small(SGD)
    target = file.workload.target.model_copy(update={"metric": metric})
    file = replace(file, workload=file.workload.model_copy(update={"target": target}))
    printed = run_in_process(written(file), tmp_path, "--seed", "2")
    shown = [float(x) for x in re.findall(rf"{metric} ([\d.]+)", printed)]
    ours = evaluations_of_ours(file, seed=2)
    assert shown[: len(ours)] == pytest.approx([e.value(metric) for e in ours], abs=6e-5)


def test_run_ends_where_the_package_ends_it_in_anytime_mode(tmp_path: Path) -> None:
    file = small(SGD)
    target = file.workload.target.model_copy(update={"value": 0.5})
    changes = {"target": target, "mode": "anytime", "eval_every_samples": 48}
    workload = file.workload.model_copy(update=changes)
    recipe = file.recipe.model_copy(update={"epochs": 30.0})
    file = replace(file, workload=workload, recipe=recipe)
    printed = run_in_process(written(file), tmp_path, "--seed", "2")
    ours = scores_of_ours(file, seed=2)
    assert scores_of(printed)[-1].step == ours[-1].step < 30 * 10
    assert "target accuracy >= 0.5: met; training time" in printed


def test_test_part_is_the_package_s(tmp_path: Path) -> None:
    file = small(SGD)
    printed = run_in_process(written(file), tmp_path, "--seed", "2", "--part", "test")
    ours = scores_of_ours(file, seed=2, part="test")
    assert [s.loss for s in scores_of(printed)] == pytest.approx([s.loss for s in ours], abs=2e-4)


def folder_of_images(folder: Path) -> str:
    noise = np.random.default_rng(1)
    for number in range(60):
        bright = number % 3 == 0
        part, name = ("Train", "Eval")[number % 5 == 0], ("b", "a", "c")[number % 3]
        size = (9 + number % 4, 11)
        pixels = noise.integers(0, 100, (*size, 3), dtype=np.uint8) + np.uint8(150 * bright)
        path = folder / "images" / part / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels, mode="RGBA" if number % 7 == 0 else None))
    turned = Image.Exif()
    turned[0x112] = 6
    Image.open(path).save(path.with_suffix(".webp"), lossless=True, exif=turned)
    path.with_name("._1.png").write_bytes(b"no image")
    return f"{{name: image_folder, root: {folder / 'images'}, image_size: 8}}"


def test_a_validation_part_of_one_s_own_is_refused(tmp_path: Path) -> None:
    root = write_noise(tmp_path / "own", {"train": 8, "val": 4, "test": 4}, size=8)
    file = of_data(f"{{name: image_folder, root: {root}, image_size: 8}}", batch_size=8)
    with pytest.raises(ConfigError, match="must leave the validation part"):
        written(file)


def test_parquet_that_a_script_would_read_otherwise_is_refused(tmp_path: Path) -> None:
    image = encode(np.zeros((8, 8, 3), np.uint8))
    for name in ("train-0", "train-1", "test-0"):
        write_parquet(tmp_path / f"{name}.parquet", [image] * 8, [0, 1] * 4)
    fields = f"name: image_parquet, train: {tmp_path}, test: {tmp_path}"
    with pytest.raises(ConfigError, match="must name files or folders of Parquet"):
        written(of_data(f"{{{fields}}}", batch_size=4))
    with pytest.raises(ConfigError, match=r"group_column: must be null"):
        written(of_data(f"{{{fields}, group_column: note}}", batch_size=4))


def folder_of_grey_images(folder: Path) -> str:
    noise = np.random.default_rng(2)
    for number in range(40):
        pixels = noise.integers(0, 100, (8, 8), dtype=np.uint8) + np.uint8(150 * (number % 2))
        path = folder / "grey" / f"class {number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels))
    return f"{{name: image_folder, root: {folder / 'grey'}, image_size: 6}}"


def parquet_files(folder: Path) -> str:
    noise, parts = np.random.default_rng(3), folder / "parts"
    parts.mkdir()
    for number in range(2):
        images = [encode(noise.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(25)]
        labels = [k % 3 for k in range(25)]
        write_parquet(
            parts / f"{number}.parquet", images, labels, names=["x", "y", "z", "none"][:3]
        )
    return f"{{name: image_parquet, train: {parts}, test: {parts / '1.parquet'}}}"


def bytes_without_names(folder: Path) -> str:
    noise = np.random.default_rng(4)
    images = [encode(noise.integers(0, 256, (9, 7, 3), dtype=np.uint8)) for _ in range(50)]
    labels = [k % 4 for k in range(50)]
    write_parquet(folder / "a.parquet", images, labels, as_struct=False)
    return f"{{name: image_parquet, train: {folder / 'a.parquet'}, image_size: 8}}"


def with_short_path(text: str) -> str:
    """A formatter would fold a path that is longer than a line."""
    return re.sub(r"(?m)^DATA = .*", 'DATA = "data"', text)


SETS = [folder_of_images, folder_of_grey_images, parquet_files, bytes_without_names]


@pytest.mark.parametrize("data", SETS)
def test_images_of_one_s_own_are_read_and_cut_as_the_package_does(
    data: Callable[[Path], str], tmp_path: Path
) -> None:
    file = of_data(data(tmp_path), batch_size=8)
    assert complaints(with_short_path(written(file)), tmp_path) == ""
    assert_same_losses(file, tmp_path)


WINDOWS = (
    "image_size: 9\n  crop_pct: 0.9\n  augmentation: {pad: 1, flip: alternating}",
    "image_size: 10\n  augmentation: {crop: {random_resized: {scale: 0.2}}, flip: random}",
)


@pytest.mark.parametrize("windows", WINDOWS, ids=("centre", "random"))
@pytest.mark.parametrize("data", SETS[:3])
def test_windows_of_stored_images_are_the_package_s(
    data: Callable[[Path], str], windows: str, tmp_path: Path
) -> None:
    file = of_data(data(tmp_path), batch_size=8, more=windows)
    assert complaints(with_short_path(written(file)), tmp_path) == ""
    assert_same_losses(file, tmp_path)


def test_a_script_normalises_as_the_weights_know_it(tmp_path: Path) -> None:
    network = timm.create_model("test_resnet", num_classes=3)
    torch.save(network.state_dict(), tmp_path / "w.pt")
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        model = f"{{timm: {{name: test_resnet, weights_file: {tmp_path / name}}}}}"
        file = of_data(folder_of_images(tmp_path), batch_size=8, model=model)
        text = written(file)
        shorter = with_short_path(text).replace(str(tmp_path), "folder")
        assert complaints(shorter, tmp_path) == ""
        assert f"# {file.recipe.model.normalisation(in_channels=3).source}" in text  # type: ignore[union-attr]
        assert_same_losses(file, tmp_path)


def test_cifar_is_read_and_cut_as_the_package_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(CIFAR10, tmp_path, monkeypatch)
    file = of_data(f"{{name: cifar10, root: {tmp_path}}}", batch_size=4)
    assert complaints(with_short_path(written(file)), tmp_path) == ""
    assert_same_losses(file, tmp_path)


@pytest.mark.parametrize("classes", [10, 4])
def test_weights_of_a_file_are_loaded_but_for_another_classifier(
    classes: int, tmp_path: Path
) -> None:
    network = MODELS["resnet"](depth=8).network(in_channels=1, num_classes=classes, image_size=8)
    torch.save(network.state_dict(), tmp_path / "w.pt")
    file = small(f"{SGD}\n  model: {{resnet: {{depth: 8, weights_file: {tmp_path / 'w.pt'}}}}}")
    assert_same_losses(file, tmp_path)


@pytest.mark.parametrize("name", RECIPES)
def test_script_is_one_that_a_person_reads(name: str) -> None:
    text = written(small(RECIPES[name]))
    assert len(text.splitlines()) <= 305
    assert max(map(len, text.splitlines())) <= 100
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    bare = [f.name for f in functions if not ast.get_docstring(f)]
    assert set(bare) <= {"__init__", "forward", "part", "batch", "update", "normalised"}


@pytest.mark.parametrize("name", RECIPES)
def test_linters_find_nothing_in_a_script(name: str, tmp_path: Path) -> None:
    assert complaints(written(small(RECIPES[name])), tmp_path) == ""


def test_imports_are_those_that_the_recipe_needs(tmp_path: Path) -> None:
    def imported(recipe: str) -> set[str]:
        tree = ast.parse(written(small(recipe)))
        plain = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        froms = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        return {str(name).split(".")[0] for name in plain | froms} - sys.stdlib_module_names

    assert imported(RECIPES["adamw"]) == {"numpy", "torch", "sklearn"}
    assert imported(RECIPES["timm"]) == {"numpy", "torch", "sklearn", "timm"}
    assert imported(RECIPES["torchvision"]) == {"numpy", "torch", "sklearn", "torchvision"}


def test_everything_that_a_script_cannot_carry_is_named_at_once() -> None:
    file = small("""optimizer: {muon: {lr: 0.01}}
  lr_schedule: reduce_on_plateau
  order: {repeat_factor: {threshold: 0.1}}
  precision: half
  speedups: {loss: {focal: {gamma: 2.0}}, init: kaiming}""")
    split = file.workload.split.model_copy(update={"long_tail": 0.1})
    file = replace(file, workload=file.workload.model_copy(update={"split": split}))
    with pytest.raises(ConfigError) as error:
        written(file)
    assert [problem.path for problem in error.value.problems] == [
        "recipe.optimizer",
        "recipe.lr_schedule",
        "recipe.precision",
        "recipe.order",
        "recipe.speedups.init",
        "recipe.speedups.loss",
        "workload.split.long_tail",
    ]
    assert (
        "recipe.optimizer: must be sgd, adam, adamw, timm in a plain script, but got muon."
        in str(error.value)
    )


CANNOT = {
    "optimizer: {sgd: {lr: 0.1, decoupled_weight_decay: true}}": (
        "recipe.optimizer.sgd.decoupled_weight_decay"
    ),
    "optimizer: {adam: {lr: 0.1, lr_scales: [0.1, 1.0]}}": "recipe.optimizer.adam.lr_scales",
    f"{SGD}\n  devices: 2": "recipe.devices",
    f"{SGD}\n  model: {{plain_cnn: {{}}}}": "recipe.model",
    f"{SGD}\n  speedups: {{batch_growth: batch_stages}}": "recipe.speedups.batch_growth",
}


@pytest.mark.parametrize("recipe", CANNOT)
def test_field_that_a_script_cannot_carry_is_named(recipe: str) -> None:
    with pytest.raises(ConfigError) as error:
        written(small(recipe))
    assert [problem.path for problem in error.value.problems] == [CANNOT[recipe]]


def test_what_changes_the_speed_alone_is_named_in_the_script() -> None:
    text = written(small(f"{SGD}\n  loader: {{dataloader: {{workers: 1}}}}\n  compile: auto"))
    assert "# Left out, as it changes no result, only the speed: recipe.loader=dataloader," in text
    assert "recipe.loader.dataloader.workers=1" in text
    assert "# Was `auto`, and is not measured here: compile: false." in text


def test_text_of_a_path_cannot_leave_its_quotes(tmp_path: Path) -> None:
    evil = 'x"\'; raise SystemExit("evil") #\\'
    root = f"{{name: image_folder, root: {json.dumps(evil)}, image_size: 8}}"
    tree = ast.parse(written(of_data(root, batch_size=8)))
    [data] = [n for n in tree.body if ast.unparse(n).startswith("DATA =")]
    assert ast.literal_eval(data.value).endswith(evil)


@pytest.mark.parametrize(
    "evil", ["coding: utf-7 +AAo-raise SystemExit+AAo-", 'x"""; raise SystemExit']
)
def test_no_name_of_a_record_can_become_code(evil: str, tmp_path: Path) -> None:
    """Python decodes a file as the comments of its first two lines say."""
    workload = {
        "dataset": {"name": "digits"}, "target": {"metric": "accuracy", "value": 0.9},
        "mode": "fixed_length",
    }  # fmt: skip
    recipe = {"model": {"resnet20": {}}, "optimizer": {"sgd": {"lr": 0.1}}, "epochs": 1.0}
    changes = {
        "recipe": {**recipe, "batch_size": 32}, "workload": workload,
        "study": evil, "trial_id": evil, "finished_at": evil,
        "device": Device.model_validate(f"cpu {evil}"),
    }  # fmt: skip
    record = make_record().model_copy(update=changes)
    options = {"run_id": evil, "search": None, "rerun": evil}
    text = exported(record, "script", path=tmp_path / evil.replace("/", ""), **options)
    names = [type(node).__name__ for node in ast.parse(text.encode()).body]
    assert "Raise" not in names and names.count("Expr") == 1
