"""Photographs from one study file: on a CPU, and on a quarter of a GPU that is a double."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers.command import Done, finished, run
from PIL import Image

pytestmark = pytest.mark.slow

STUDY = """
study: tiny
workload:
  dataset: {name: image_folder, root: photos}
  target: {metric: accuracy, value: 0.99}
  max_train_s: 600
recipe:
  model: {timm: {name: test_efficientnet, weights_file: weights.pt}}
  optimizer: {adamw: {lr: {low: 0.001, high: 0.01, log: true}}}
  lr_schedule: one_cycle
  epochs: 2
  batch_size: 12
  image_size: {choices: [32, 48]}
  eval_size: 48
  crop_pct: 0.9
  label_smoothing: 0.1
  augmentation:
    crop: {random_resized: {scale: {low: 0.2, high: 0.8}}}
    flip: random
    mixup: {choices: [0.0, 0.2]}
    cutmix: {choices: [0.0, 1.0]}
  loader: %s
search:
  trials: 4
  concurrent: 1
  resources: %s
  points_to_evaluate:
    - {image_size: 32, augmentation.mixup: 0.2, augmentation.cutmix: 1.0}
    - {image_size: 48, augmentation.mixup: 0.0, augmentation.cutmix: 0.0}
"""
MACHINES = {"cpu": "{cpu: 1}", "double": "{cpu: 0.5, gpu: 0.25}"}


def write_photographs(folder: Path) -> None:
    """Writes JPEG files of several sizes: stripes, columns or neither, under noise."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 24), ("validation", 8), ("test", 8)):
        for label in range(3):
            place = folder / part / f"class {label}"
            place.mkdir(parents=True)
            for number in range(count):
                height, width = rng.permutation([60, 80]) if number % 3 else (64, 64)
                pixels = rng.integers(0, 120, (height, width, 3), dtype=np.uint8)
                stripes = (
                    (slice(None, None, 8),) if label == 0 else (slice(None), slice(None, None, 8))
                )
                pixels[stripes if label < 2 else slice(0)] += 100
                Image.fromarray(pixels).save(place / f"{number:02}.jpg", quality=95)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("loader", ["resident", "{dataloader: {workers: 1}}"])
def test_a_study_of_photographs_is_searched(machine: str, loader: str, tmp_path: Path) -> None:
    write_photographs(tmp_path / "photos")
    torch.manual_seed(0)
    torch.save(timm.create_model("test_efficientnet").state_dict(), tmp_path / "weights.pt")
    (tmp_path / "photos.yaml").write_text(STUDY % (loader, MACHINES[machine]))
    done = search(tmp_path, is_double=machine == "double")
    assert done.code in (0, 1), done.err
    records = finished(tmp_path)
    assert [
        record["status"] for record in records if record["status"] not in ("reached", "missed")
    ] == []
    assert len(records) == 4
    for record in records:
        (result,) = record["runs"]
        assert result["evaluations"][-1]["accuracy"] >= 0.2
        assert ("cpu" in record["device"]) == (machine == "cpu")
    shown = {record["recipe"]["image_size"] for record in records[:2]}
    assert shown == {32, 48}


def search(folder: Path, *, is_double: bool) -> Done:
    if not is_double:
        return run("search", "photos.yaml", folder=folder)
    paths = [str(Path(__file__).parent / "processes"), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": 1}),
        "CUDA_DOUBLE_GIB": "0.5",
    }
    return run("search", "photos.yaml", folder=folder, **variables)
