"""`tune-speed init`: from a folder of images to a study file that a search takes."""

import shlex
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers.command import run_inside
from helpers.data.files import encode, go_offline, write_noise, write_photos

from tune_speed.api import first_study
from tune_speed.experiments.fine_tuning import range_test
from tune_speed.experiments.fine_tuning.targets import below
from tune_speed.study.file import load_study


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "my photos").parent


def test_a_folder_becomes_a_study_file_whose_target_a_plain_run_reached(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_inside("init", "my photos", "--probe", "2s", "--json", folder=photos)
    assert done.code == 0, done.err
    found = done.json
    assert (found["file"], found["images"], found["classes"]) == ("my_photos.yaml", 160, 2)
    assert found["largest_class"] == 0.625
    assert "2 classes (bright, dark); 102 training, 26 validation and 32 test images" in done.err
    assert 0.71 < found["target"] <= found["reached"]
    monkeypatch.chdir("/")  # Paths start at the file.
    study = load_study(photos / "my_photos.yaml")
    assert study.name == study.workload.label == "my_photos"
    assert study.workload.target.value == found["target"]
    assert study.workload.max_train_s == max(10, found["max_train_s"])
    assert study.workload.model_dump()["dataset"]["image_size"] == 8
    comments = [line.rindex(" # ") for line in study.text.splitlines() if "  # " in line.lstrip()]
    assert len(set(comments)) == 1, "comments stand in one column"


def test_it_says_what_comes_next_and_overwrites_nothing(photos: Path) -> None:
    options = ("--probe", "1s", "--out", "a study.yaml", "--study", "s")
    done = run_inside("init", "my photos", *options, folder=photos)
    assert done.code == 0, done.err
    assert f"tune-speed search {shlex.quote('a study.yaml')}" in done.out
    before = (photos / "a study.yaml").read_text()
    again = run_inside("init", "my photos", *options, folder=photos)
    assert again.code == 2 and "must be a new file, unless --replace is given" in again.err
    assert (photos / "a study.yaml").read_text() == before
    done = run_inside("init", "my photos", *options, "--target", "0.6", "--replace", folder=photos)
    assert done.code == 0 and "value: 0.6}" in (photos / "a study.yaml").read_text()


def test_what_cannot_be_is_refused_and_a_name_of_digits_is_a_name(photos: Path) -> None:
    (photos / "my photos").rename(photos / "2024")
    done = run_inside("init", "2024", "--target", "1.5", folder=photos)
    assert done.code == 2 and "--target" in done.err and not list(photos.glob("*.yaml"))
    done = run_inside("init", "2024", "--probe", "0.5s", "--target", "0.7", folder=photos)
    assert done.code == 0 and load_study(photos / "2024.yaml").name == "2024"


def test_a_run_that_learns_nothing_proposes_nothing(photos: Path) -> None:
    noise = np.random.default_rng(1)
    for path in photos.rglob("*.png"):
        path.write_bytes(encode(noise.integers(0, 255, (8, 8, 3), dtype=np.uint8)))
    done = run_inside("init", "my photos", "--probe", "0.5s", folder=photos)
    assert done.code == 2 and "to propose a target" in done.err and "--probe 5m" in done.err
    assert not list(photos.glob("*.yaml"))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere",), 3, "there is no"),
        (("my photos", "--probe", "soon"), 2, "must be a duration"),
        (("my photos", "--study", "a/b"), 2, "study: must match"),
    ],
)
def test_mistakes_are_told_before_anything_trains(
    photos: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = run_inside("init", *arguments, folder=photos)
    assert done.code == code and said in done.err


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Returns a folder with photographs of noise and the weights of a small network."""
    write_noise(tmp_path / "photos", {"train": 40, "validation": 20, "test": 20}, size=110)
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "w.pt")
    return tmp_path


def test_photographs_are_fine_tuned_around_the_rate_of_a_range_test(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_test, "STEPS", (30, 30))
    monkeypatch.setattr(first_study, "LEAST_LEARNT", -9.0)  # Of noise, nothing is.
    options = ("--weights", "w.pt", "--model", "test_resnet", "--probe", "1s", "--json")
    done = run_inside("init", "photos", *options, folder=photographs)
    assert done.code == 0, done.err
    assert "shorter sides 110 to 110" in done.err and "repeated: 0 of 80" in done.err
    assert all(f"a {what} " in done.err for what in ("trial", "search", "certification"))
    found = done.json
    assert found["target"] == below(found["promised"], 20) and found["promised"] >= found["reached"]
    assert "<svg" in (photographs / found["picture"]).read_text()
    monkeypatch.chdir("/")
    study = load_study(photographs / "photos.yaml")
    params = {parameter.name: parameter for parameter in study.space.parameters}
    assert {"epochs", "batch_size"} <= params.keys()
    assert study.space.tree["image_size"] == 96, "one size is left of images of 110 pixels"
    assert "split" not in study.text, "the images have a validation part"
    assert study.certify is None, "a search ends with its budget"
    (first,) = study.search.points_to_evaluate
    assert first.keys() < params.keys()
    rate = params["optimizer.adamw.lr"]
    assert rate.low < first["optimizer.adamw.lr"] < rate.high
    weights = study.space.tree["model"]["timm"]["weights_file"]
    assert weights == str(photographs / "w.pt")


def test_without_weights_photographs_are_trained_from_fresh_ones_and_it_says_so(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_offline(monkeypatch, photographs / "hub")
    options = ("--target", "0.5", "--quick", "--probe", "1s")
    done = run_inside("init", "photos", *options, folder=photographs)
    assert done.code == 0 and "no published weights" in done.err, done.err
    assert load_study(photographs / "photos.yaml").space.tree["model"] in (
        "resnet20",
        {"resnet20": {}},
    )


def test_weights_are_refused_where_images_are_no_photographs(photos: Path) -> None:
    done = run_inside("init", "my photos", "--weights", "w.pt", folder=photos)
    assert done.code == 2 and "no photographs" in done.err
