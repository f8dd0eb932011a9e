"""Images in files, classified by a saved network as its evaluations classify the stored ones."""

import csv
import json
import os
import shutil
import signal
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.training.tiny import CPU
from PIL import Image

import tune_speed
from tune_speed.api.predicted import Predicted
from tune_speed.api.progress import Progress
from tune_speed.core.errors import ConfigError, DataError
from tune_speed.data import boxes
from tune_speed.data.loaders.resident import eval_batches
from tune_speed.experiments.predictions import predictions
from tune_speed.training.build import view_of
from tune_speed.training.objective import load_splits
from tune_speed.training.saved_model import SavedModel
from tune_speed.training.workload import Workload

CLASSES = ("Röcke", "bottes d'été", "靴")
RECIPE = {
    "model": {"resnet": {"depth": 8}},
    "optimizer": {"sgd": {"lr": 0.05}},
    "epochs": 2.0,
    "batch_size": 8,
}


def write_folder(root: Path, *, size: tuple[int, int] | None, channels: int, count: int) -> Path:
    """Writes photographs of several sizes, or of one, with rows, columns or neither."""
    draws = np.random.default_rng(count)
    for number, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for place in range(count):
            height, width = size or draws.integers(20, 50, 2).tolist()
            pixels = draws.integers(0, 200, (height, width, channels), np.uint8)
            pixels[:: 3 if number == 0 else 99] = 255
            pixels[:, :: 3 if number == 1 else 99] = 255
            shape = pixels if channels == 3 else pixels[..., 0]
            Image.fromarray(shape).save(root / name / f"{place}.{('png', 'jpg')[place % 2]}")
    return root


def task_of(root: Path, **dataset: Any) -> dict[str, Any]:
    fields = {"name": "image_folder", "root": str(root), **dataset}
    return {"dataset": fields, "target": {"value": 0.9}, "split": {"validation_frac": 0.3}}


STORES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, int] | None, int]] = {
    "pixels": ({}, {"image_size": 24, "crop_pct": 0.875}, None, 3),
    "jpeg": ({"store": "jpeg"}, {"image_size": 16, "eval_size": 24}, None, 3),
    "grey": ({}, {"image_size": 16}, None, 1),
    "squares": ({"image_size": 20}, {}, None, 3),
    "one size": ({}, {}, (18, 26), 3),
    "one size, grey": ({"store_size": None}, {}, (18, 18), 1),
}


@pytest.fixture(scope="module", params=STORES)
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, session_cache: Path
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder with photographs and a network that was trained on them, and its workload."""
    dataset, recipe, size, channels = STORES[request.param]
    folder = tmp_path_factory.mktemp("kept")
    for part, count in (("train", 12), ("test", 5)):
        write_folder(folder / "photos" / part, size=size, channels=channels, count=count)
    task = task_of(folder / "photos", **dataset)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        done = tune_speed.train(
            {
                "study": "kept",
                "recipe": {**RECIPE, **recipe},
                "workload": task,
                "run": {"device": "cpu"},
            },
            save=folder / "m.pt",
        )
    assert done.saved == folder / "m.pt" and done.record is not None
    yield folder, done.record.workload


def test_files_are_seen_as_evaluation_sees_the_stored_images(
    kept: tuple[Path, dict[str, Any]],
) -> None:
    folder, workload = kept
    model = SavedModel.read(folder / "m.pt", CPU)
    splits = load_splits(Workload.model_validate(workload))
    facts = model.facts
    assert facts.class_names == CLASSES
    view = view_of(facts.recipe, splits)
    ((images, labels),) = eval_batches(splits.test, view, batch_size=99, device=CPU)
    model.network.eval()
    with torch.inference_mode():
        expected = model.network(images).double().softmax(dim=1).numpy()
    files = [f for name in CLASSES for f in sorted((folder / "photos" / "test" / name).iterdir())]
    np.testing.assert_array_equal(np.stack([*predictions(model, files)]), expected)
    found = tune_speed.predict(folder / "m.pt", folder / "photos" / "test")
    assert found.accuracy == float((expected.argmax(1) == labels.numpy()).mean())
    assert found.confusion.sum(axis=1).tolist() == [5, 5, 5] and not found.was_stopped
    row = next(row for row in found.rows if row["path"] == str(files[7]))
    assert row["class"] == CLASSES[expected[7].argmax()]
    assert row["chance"] == pytest.approx(expected[7].max(), abs=1e-6)


def test_the_recorded_accuracy_is_that_of_the_validation_files(tmp_path: Path) -> None:
    for part, count in (("train", 12), ("validation", 7), ("test", 5)):
        write_folder(tmp_path / part, size=None, channels=3, count=count)
    recipe = {**RECIPE, "image_size": 24, "speedups": {"averaging": "ema"}}
    save = tmp_path / "m.pt"
    done = tune_speed.train(recipe, workload=task_of(tmp_path), seeds=2, save=save)
    finals = [run.final.accuracy for run in done.runs if run.final]
    assert tune_speed.predict(save, tmp_path / "validation").accuracy == max(finals)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_folder(tmp_path / "photos", size=None, channels=3, count=8)
    file = tmp_path / "m.pt"
    tune_speed.train({**RECIPE, "image_size": 16}, workload=task_of(tmp_path / "photos"), save=file)
    return file


def test_damaged_files_are_named_and_the_others_classified(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "photos" / CLASSES[1]
    (place / "broken.png").write_bytes(b"no image")
    (place / "notes.txt").write_text("no image, either")
    found = tune_speed.predict(model, [place, tmp_path / "photos" / CLASSES[0] / "0.png"])
    assert [str(place / "broken.png") in line for line in found.damaged] == [True]
    assert len(found.rows) == 9 and found.accuracy is None
    with pytest.raises(DataError, match="none"):
        tune_speed.predict(model, tmp_path / "none.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        tune_speed.predict(model, tmp_path / "empty")


def test_names_match_however_their_accents_are_written(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / unicodedata.normalize("NFD", CLASSES[0])
    shutil.copytree(tmp_path / "photos" / CLASSES[0], other)
    shutil.copytree(tmp_path / "photos" / CLASSES[1], tmp_path / "other" / "unknown")
    assert other.name != CLASSES[0]
    found = tune_speed.predict(model, tmp_path / "other")
    assert found.confusion.sum(axis=1).tolist() == [8, 0, 0] and len(found.rows) == 16


def test_lines_are_written_as_csv_or_json(model: Path, tmp_path: Path) -> None:
    found: dict[str, Predicted] = {}
    for form in ("csv", "jsonl"):
        file = tmp_path / f"o.{form}"
        found[form] = tune_speed.predict(model, tmp_path / "photos", output=file, top=3)
    with (tmp_path / "o.csv").open(encoding="utf-8", newline="") as lines:
        rows = [*csv.DictReader(lines)]
    assert [*rows[0]] == ["path", "class", "chance", "class_2", "chance_2", "class_3", "chance_3"]
    as_json = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert as_json == [*found["jsonl"].rows] == [*found["csv"].rows]
    assert [{n: str(v) for n, v in row.items()} for row in as_json] == rows
    chances = [[row[f"chance{rank}"] for rank in ("", "_2", "_3")] for row in as_json]
    assert all(each == sorted(each, reverse=True) for each in chances)
    np.testing.assert_allclose(np.sum(chances, axis=1), 1, atol=2e-6)
    with pytest.raises(ConfigError):
        tune_speed.predict(model, tmp_path / "photos", output=tmp_path / "o.xlsx")
    assert found["csv"].as_dict()["confusion"] == found["csv"].confusion.tolist()


class Stopping(Progress):
    """Presses Ctrl-C after so many images."""

    def decoded(self, done: int, total: int, **_: Any) -> None:
        if done == 5:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_leaves_the_lines_so_far(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "o.csv"
    stopping = Stopping(shown=False)
    found = tune_speed.predict(model, tmp_path / "photos", output=file, progress=stopping)
    assert found.was_stopped and len(found.rows) == 5
    assert len(file.read_text().splitlines()) == 6


def test_of_several_classes_an_image_chances_are_sigmoids(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    lines = ["path,label"]
    for place in range(40):
        of = [name for name, is_of in zip("ab", draws.random(2) < 0.6, strict=True) if is_of]
        pixels = draws.integers(0, 120, (12, 12, 3), np.uint8)
        pixels[:: 2 if "a" in of else 99] = 255
        Image.fromarray(pixels).save(tmp_path / f"{place}.png")
        lines.append(f"{place}.png,{'|'.join(of)}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    task = {
        **task_of(tmp_path),
        "dataset": {"name": "csv", "file": f"{tmp_path}/labels.csv"},
    }
    recipe = {**RECIPE, "image_size": 16, "speedups": {"loss": "bce"}}
    save = tmp_path / "m.pt"
    tune_speed.train(recipe, workload=task, save=save)
    found = tune_speed.predict(save, tmp_path, top=2)
    model = SavedModel.read(save, CPU)
    file = tmp_path / "7.png"
    pixels = np.array(Image.open(file))[None]
    with torch.inference_mode():
        expected = model(model.windows(pixels, np.array([[12, 12]])))[0].double().sigmoid()
    row = next(row for row in found.rows if row["path"] == str(file))
    chances = {row["class"]: row["chance"], row["class_2"]: row["chance_2"]}
    assert [chances[name] for name in "ab"] == pytest.approx(expected.tolist(), abs=1e-4)
    assert row["classes"] == "|".join(n for n, c in zip("ab", expected, strict=True) if c > 0.5)


def test_a_network_of_grey_images_sees_the_luminance_of_colours(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "c.png")
    found = boxes.read(tmp_path / "c.png", "c.png", None, None, False, 1)
    np.testing.assert_array_equal(
        found, np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
    )
