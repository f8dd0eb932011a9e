"""`train --save`, `predict` and `export` as a user runs them."""

import importlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.command import Done
from PIL import Image

from tune_speed.core.version import installed_version
from tune_speed.experiments.exports.onnx_graph import NEEDED
from tune_speed.tracking import Store
from tune_speed.training.saved_model import SavedModel

Call = Callable[..., Done]
RECIPE = """
study: flowers
workload: {dataset: {name: image_folder, root: photos}, target: 0.5}
recipe:
  model: {resnet: {depth: 8}}
  optimizer: {sgd: {lr: 0.05}}
  epochs: 1
  batch_size: 8
  image_size: 16
"""


@pytest.fixture
def folder(tmp_path: Path, call: Call) -> Path:
    """A folder with photographs and a network that was trained on them."""
    draws = np.random.default_rng(0)
    for number, name in enumerate(("rose", "tulip")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in range(12):
            pixels = draws.integers(0, 100, (20, 24, 3), np.uint8)
            pixels[..., number] += 150
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{place}.png")
    (tmp_path / "flowers.yaml").write_text(RECIPE)
    done = call("train", "flowers.yaml", "--save", "m.pt", folder=tmp_path)
    assert done.code in (0, 1) and "tune-speed predict m.pt" in done.err
    return tmp_path


def test_predict_prints_lines_and_then_what_is_right(folder: Path, call: Call) -> None:
    done = call("predict", "m.pt", "photos", folder=folder)
    heading, *lines = done.out.splitlines()
    assert (done.code, heading, len(lines)) == (0, "path,class,chance", 24)
    assert "accuracy" in done.err and "tulip" in done.err
    as_json = call("predict", "m.pt", "photos", "--top", "2", "--json", folder=folder).json
    right = np.trace(np.array(as_json["confusion"])) / 24
    assert as_json["accuracy"] == right and f"accuracy {right:.4f}" in done.err
    assert [row["path"] for row in as_json["predictions"]] == [each.split(",")[0] for each in lines]
    written = call("predict", "m.pt", "photos", "--output", "o.csv", folder=folder)
    assert (folder / "o.csv").read_text() == done.out and f"accuracy {right:.4f}" in written.out


def test_damaged_files_end_in_exit_code_3_with_their_names(folder: Path, call: Call) -> None:
    (folder / "photos" / "rose" / "bad.jpg").write_bytes(b"bad")
    done = call("predict", "m.pt", "photos", folder=folder)
    assert done.code == 3 and "bad.jpg" in done.err and len(done.out.splitlines()) == 25


def test_what_is_no_model_is_wrong_input(folder: Path, call: Call) -> None:
    assert call("predict", "flowers.yaml", "photos", folder=folder).code == 2
    assert call("predict", "none.pt", "photos", folder=folder).code == 2
    assert call("predict", "m.pt", "none", folder=folder).code == 3
    both = ("train", "flowers.yaml", "--against", "flowers.yaml", "--save", "n.pt")
    assert call(*both, folder=folder).code == 2
    assert call("train", "flowers.yaml", "--save", "none/n.pt", folder=folder).code == 2


def test_an_exported_script_evaluates_the_saved_weights(folder: Path, call: Call) -> None:
    from helpers.experiments.exports import run_in_process

    from tune_speed.experiments.exports.script import script
    from tune_speed.study.file import load_recipe

    recipe = load_recipe(folder / "flowers.yaml")
    text = script(recipe, origin="# of a test", path="train.py")
    said = run_in_process(text, folder, "--weights", str(folder / "m.pt"))
    value = SavedModel.read(folder / "m.pt", torch.device("cpu")).facts.value
    assert said.startswith(f"accuracy and loss: {value} ") and len(said.splitlines()) == 1


@pytest.mark.filterwarnings("ignore")  # MLflow's own, while it loads, and torch's while it draws.
def test_a_registered_network_loads_from_the_registry(folder: Path, call: Call) -> None:
    import mlflow

    done = call("export", "m.pt", "--register", "flowers", "--json", folder=folder)
    assert done.code == 0, done.err
    assert done.json == {"registered": "models:/flowers/1"}
    assert "models:/flowers/2" in call("export", "m.pt", "--register", "flowers", folder=folder).err
    uri = f"sqlite:///{folder}/mlflow.db"
    (newest,) = Store(uri).create().search_model_versions("name='flowers' and version_number=2")
    mlflow.set_tracking_uri(uri)
    loaded = mlflow.pytorch.load_model(f"models:/flowers/{newest.version}")
    model = SavedModel.read(folder / "m.pt", torch.device("cpu"))
    windows = torch.randint(0, 256, (5, *model.window_shape), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(loaded(windows), model(windows))
    info = mlflow.models.get_model_info(f"models:/flowers/{newest.version}")
    assert info.signature.inputs.inputs[0].shape == (-1, 3, 16, 16)


def test_onnx_without_its_packages_names_them(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tune_speed.experiments.exports.onnx_graph.installed_version",
        lambda name: None if name == "onnxscript" else "1.0",
    )
    done = call("export", "m.pt", "--onnx", "m.onnx", folder=folder)
    assert done.code == 2 and "onnxscript" in done.err and "tune_speed[onnx]" in done.err
    assert not (folder / "m.onnx").exists()


@pytest.mark.skipif(not all(map(installed_version, NEEDED)), reason=f"needs {', '.join(NEEDED)}")
@pytest.mark.filterwarnings("ignore")  # Torch's own, while it draws.
def test_an_onnx_graph_gives_torch_s_logits_for_any_number_of_images(
    folder: Path, call: Call
) -> None:
    assert call("export", "m.pt", "--onnx", "m.onnx", folder=folder).code == 0
    session = importlib.import_module("onnxruntime").InferenceSession(folder / "m.onnx")
    model = SavedModel.read(folder / "m.pt", torch.device("cpu"))
    for count in (1, 5):
        windows = torch.randint(0, 256, (count, *model.window_shape), dtype=torch.uint8)
        (found,) = session.run(None, {"pixels": windows.numpy()})
        with torch.inference_mode():
            np.testing.assert_allclose(found, model(windows).numpy(), atol=1e-4)
