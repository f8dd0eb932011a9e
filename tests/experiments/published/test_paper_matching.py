from typing import Any

import pytest
from helpers.experiments.replications import shipped

from tune_speed.components.metrics import METRICS
from tune_speed.components.models import MODELS
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.core.records import TrialRecord
from tune_speed.core.words import Device
from tune_speed.experiments.published import published
from tune_speed.experiments.published.side_by_side import (
    COMPONENTS,
    dataset_of,
    flat_recipe,
    is_same,
    matches_of,
)
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import WORKLOADS

CIRCUMSTANCES = {"device", "part", "training images", "target", "beside"}


def _changed(record: TrialRecord, **fields: Any) -> TrialRecord:
    return record.model_copy(update={"recipe": {**record.recipe, **fields}})


def _differences(record: TrialRecord, setting: str) -> list[str]:
    [found, *_] = [match for match in matches_of(record) if match.setting.setting == setting]
    return [words for field, words in found.differs.items() if field not in CIRCUMSTANCES]


@pytest.mark.parametrize("name", ["seed_resnet50", "cifar10_finetune_vit"])
def test_shipped_points_are_the_arms_that_they_say(name):
    assert _differences(shipped(name, 0), "without techniques") == []
    assert _differences(shipped(name, 1), "with techniques") == []


def test_the_shipped_baseline_of_the_project_is_its_baseline():
    assert _differences(shipped("seed_resnet20", 0), "baseline, 200 epochs") == []


def test_the_shipped_efficientnet_differs_in_what_its_file_says():
    # Accumulation as the study's text has it, batches of 200 as its notebook has them.
    assert _differences(shipped("cifar10_finetune_efficientnet", 0), "with techniques") == [
        "precision fp16 there, fp32 here"
    ]
    assert _differences(shipped("cifar10_finetune_efficientnet", 1), "with techniques") == [
        "batch_size 96 there, 200 here",
        "accumulation_steps 2 there, 1 here",
    ]


def test_the_nearest_setting_comes_first():
    found = [match.setting.setting for match in matches_of(shipped("seed_resnet50", 1))]
    assert found == ["with techniques", "without techniques"]


def test_each_changed_field_is_said():
    record = _changed(shipped("seed_resnet50", 0), epochs=12.5, batch_size=256)
    assert _differences(record, "without techniques") == [
        "batch_size 128 there, 256 here",
        "epochs 30 there, 12.5 here",
    ]


def test_a_technique_that_the_source_lacks_is_said():
    record = _changed(shipped("seed_resnet20", 0), speedups={"averaging": {"ema": {"decay": 0.9}}})
    assert "speedups.averaging none there, ema here" in _differences(record, "baseline, 200 epochs")


def test_device_part_images_and_target_are_said():
    record = shipped("seed_resnet20", 0)
    assert list(matches_of(record)[0].differs.values()) == [
        "device 1080 Ti there, cpu (1 thread, test) here",
        "part test there, validation here",
        "training images 50000 there, 45000 here",
        "target none there, accuracy 0.91 here",
    ]
    changes = {
        "device": Device(type="NVIDIA GeForce GTX 1080 Ti"),
        "evaluated_on": "test",
        "workload": record.workload | {"certify_on": "train+validation"},
    }
    same = matches_of(record.model_copy(update=changes))[0].same
    assert (same["device"], same["part"]) == ("device 1080 Ti", "part test")
    assert same["training images"] == "training images 50000"


def test_an_entry_without_fields_is_its_name():
    assert flat_recipe({"lr_schedule": {"constant": {}}})["lr_schedule"] == "constant"


def test_rates_are_compared_as_those_of_a_step():
    record = shipped("seed_resnet20", 1)  # 0.1 per 128 images, in batches of 1024
    assert flat_recipe(record.recipe)["lr"] == pytest.approx(0.8)
    assert "lr 0.1 there, 0.8 here" in _differences(record, "baseline, 200 epochs")


def test_other_data_and_other_networks_match_nothing():
    digits = WORKLOADS["digits"].model_dump(mode="json")
    assert matches_of(shipped("seed_resnet50", 0).model_copy(update={"workload": digits})) == []
    record = shipped("cifar10_finetune_vit", 0)
    tiny = {"vit": {**record.recipe["model"]["vit"], "size": "tiny"}}
    assert matches_of(_changed(record, model=tiny)) == []
    other_depth = _changed(shipped("seed_resnet20", 0), model={"resnet": {"depth": 56}})
    assert matches_of(other_depth) == []


def test_the_same_network_by_another_name_matches():
    record = _changed(shipped("seed_resnet20", 0), model={"resnet": {"depth": 20, "stem": "cifar"}})
    assert {match.setting.setting for match in matches_of(record)} == {
        "baseline, 200 epochs",
        "half precision, 200 epochs",
        "4 GPUs, 200 epochs",
        "stochastic depth, 200 epochs",
    }
    torchvision = _changed(record, model={"torchvision": {"name": "squeezenet1_1"}})
    assert {match.setting.table for match in matches_of(torchvision)} == {"Table I", "Table II"}


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ({"name": "cifar10", "root": "data"}, "CIFAR-10"),
        ({"name": "cifar100", "root": "data"}, "CIFAR-100"),
        ({"name": "image_parquet", "train": "a/cifar10-train.parquet", "test": "b"}, "CIFAR-10"),
        ({"name": "image_folder", "root": "/data/CIFAR-100"}, "CIFAR-100"),
        ({"name": "image_folder", "root": "/cifar10/cats"}, None),
        ({"name": "digits"}, None),
        ({"name": "image_parquet", "train": "cifar10.parquet", "test": "cifar100.parquet"}, None),
    ],
)
def test_a_data_set_is_told_by_its_name_or_its_files(dataset, expected):
    assert dataset_of({"dataset": dataset}) == expected


def test_every_rule_names_what_there_is():
    assert all(row[1] in METRICS for rows in published.METRICS_HERE.values() for row in rows)
    for names in published.MODELS_HERE.values():
        for name, fields in names:
            assert set(fields) <= set(MODELS[name].model_fields)
    tables = {"model": MODELS, "optimizer": OPTIMIZERS, "lr_schedule": SCHEDULES}
    assert set(COMPONENTS) <= set(Recipe.model_fields)
    for setting in published.SETTINGS:
        for path, value in setting.recipe.items():
            root, _, field = path.partition(".")
            assert root in {*Recipe.model_fields, "lr"}
            assert value in tables[root] if path in tables else True
            if root in tables and field:
                kinds = [published.MODELS_HERE[setting.model][0][0]] if root == "model" else []
                name = kinds[0] if kinds else setting.recipe[root]
                assert field in tables[root][name].model_fields
        assert setting.recipe.get("speedups.depth", "stochastic_depth") in SPEEDUPS


def test_every_setting_has_figures_and_every_table_row_a_setting():
    assert all(published.figures_of(setting) for setting in published.SETTINGS)
    tables = {(setting.source, setting.table) for setting in published.SETTINGS}
    in_settings = [
        figure for s in published.SETTINGS for figure in published.figures_of(s).values()
    ]
    for figure in published.published_figures():
        assert figure in in_settings or (figure.source, figure.table) not in tables


def test_epochs_and_batches_of_the_rules_are_the_printed_ones():
    printed = [
        (setting.recipe[metric], published.figures_of(setting)[metric].number)
        for setting in published.SETTINGS
        for metric in ("epochs", "batch_size")
        if metric in published.figures_of(setting)
    ]
    assert len(printed) == 24 and all(ours == theirs for ours, theirs in printed)


def test_speed_ups_count_from_the_arm_without():
    by_name = {(s.model, s.dataset, s.setting): s for s in published.SETTINGS}
    best = by_name["pre-activation ResNet-20", "CIFAR-10", "best model, 200 epochs"]
    assert published.base_of(best) == by_name["ResNet-20", "CIFAR-10", "baseline, 200 epochs"]
    vit = by_name["ViT", "CIFAR-100", "with techniques"]
    assert published.base_of(vit) == by_name["ViT", "CIFAR-100", "without techniques"]
    assert published.base_of(published.base_of(vit)) is None


def test_values_are_the_same_to_rounding_only():
    assert is_same([0.4, 0.8], [0.4, 0.8])
    assert is_same(30, 30.0)
    assert not is_same(True, 1.5)
    assert not is_same(None, 0.01) and not is_same([0.4], [0.4, 0.8])
