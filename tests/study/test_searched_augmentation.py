from pathlib import Path

import pytest

from tune_speed.core.config import canonical_hash
from tune_speed.core.errors import ConfigError
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.study.file import load_study
from tune_speed.training.recipe import Recipe

STUDY = """\
study: augmentations
workload: digits
recipe:
  model: resnet20
  optimizer: {sgd: {lr: 0.1}}
  epochs: 1
  batch_size: 64
  augmentation:
    auto:
      choices:
        off: {}
        rand_augment: {magnitude: {low: 5, high: 11}, num_ops: [1, 2]}
        trivial_augment: {interpolation: [nearest, bilinear]}
    color_jitter: {brightness: {low: 0.0, high: 0.4}, contrast: 0.4, hue: [0.0, 0.1]}
    erasing: {probability: {low: 0.0, high: 0.5}, mode: [const, pixel]}
search: {trials: 4}
"""


def test_each_field_is_searched_as_a_number_or_as_a_choice_with_fields_of_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    space = load_study(tmp_path / "study.yaml", check_data=False).space
    names = {parameter.name.removeprefix("augmentation.") for parameter in space.parameters}
    assert names == {
        *("auto", "auto.rand_augment.magnitude", "auto.rand_augment.num_ops"),
        *("auto.trivial_augment.interpolation", "color_jitter.brightness", "color_jitter.hue"),
        *("erasing.probability", "erasing.mode"),
    }
    built = [
        Recipe.model_validate(space.build(params)).augmentation for params in space.corners(limit=2)
    ]
    assert {type(each.auto).__name__ for each in built} >= {"Off", "RandAugment"}
    assert {each.erasing.probability for each in built} == {0.0, 0.5}


def test_a_magnitude_out_of_range_is_an_error_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.replace("high: 11", "high: 31"))
    with pytest.raises(ConfigError) as caught:
        load_study(tmp_path / "study.yaml", check_data=False)
    (problem,) = caught.value.problems
    assert problem.path == "recipe.augmentation.auto.rand_augment.magnitude.high"
    assert problem.line == 12


def speed_of(**changes) -> str:
    return canonical_hash(Augmentation.model_validate(changes).speed_fields())


def test_what_is_off_leaves_hashes_and_keys_of_step_times_as_they_were() -> None:
    dumped = Augmentation().model_dump(mode="json")
    assert dumped == {"pad": 0, "flip": "none", "affine": 0.0, "cutout": 0}
    assert Augmentation().speed_fields() == dumped


def test_a_step_takes_as_long_with_another_strength_of_the_same_changes() -> None:
    assert speed_of(color_jitter={"hue": 0.1}) == speed_of(color_jitter={"hue": 0.2})
    assert speed_of(color_jitter={"hue": 0.1}) != speed_of(color_jitter={"contrast": 0.1})
    assert speed_of(erasing={"probability": 0.1}) == speed_of(erasing={"probability": 0.2})
    pixel = {"probability": 0.1, "mode": "pixel"}
    assert speed_of(erasing={"probability": 0.1}) != speed_of(erasing=pixel)
    assert speed_of(auto={"rand_augment": {}}) != speed_of()
