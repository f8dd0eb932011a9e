import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.replication.shipped import as_overrides, plan
from tune_speed.study.file import load_recipe

TREE = {
    "replication": {"parts": {"a": {"epochs": 3}, "b": {"workload.split": {"train_samples": 9}}}},
    "scale": {
        "cpu": {"about": "x", "set": {"epochs": 1, "model": "resnet20"}},
        "gpu": {"about": "x", "set": {"epochs": 1}, "parts": {"c": None}},
    },
}


def test_full_is_the_file_with_its_parts():
    parts = plan(TREE, "full")
    assert parts == (("a", ("epochs=3",)), ("b", ('workload.split={"train_samples": 9}',)))


def test_values_of_the_profile_come_before_those_of_the_part():
    name, overrides = plan(TREE, "cpu")[0]
    assert (name, overrides) == ("a", ("epochs=1", "model=resnet20", "epochs=3"))


def test_parts_of_the_profile_stand_in_the_place_of_the_files():
    assert plan(TREE, "gpu") == (("c", ("epochs=1",)),)


def test_file_without_parts_is_the_only_one():
    assert plan({"replication": {"title": "x"}}, "full") == (("", ()),)
    assert plan({"scale": {"cpu": {"set": {"epochs": 1}}}}, "cpu") == (("", ("epochs=1",)),)


def test_profile_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"there are full, cpu, gpu, but got cpuu.*`cpu`"):
        plan(TREE, "cpuu")
    with pytest.raises(ConfigError, match="there are full, but got cpu"):
        plan({}, "cpu")


VALUES = {
    "recipe.epochs": 2.5,
    "batch_size": 32,
    "optimizer": {"adamw": {"lr": 1e-5}},
    "workload.dataset": {"name": "digits", "scale": 2},
    "augmentation.pad": 1,
    "precision": "fp32",
    "clip_norm": None,
    "model": "resnet20",
    "loader.dataloader.pin_memory": False,
}


def test_overrides_are_read_back_as_the_values(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(
        "workload: digits\nrecipe: {model: resnet20, optimizer: {sgd: {lr: 0.1}}, epochs: 1,"
        " batch_size: 8, loader: dataloader}\n"
    )
    tree = load_recipe(path, overrides=as_overrides(VALUES), check_data=False).tree
    recipe = tree["recipe"]
    assert (recipe["epochs"], recipe["batch_size"], recipe["clip_norm"]) == (2.5, 32, None)
    assert recipe["optimizer"] == {"adamw": {"lr": 1e-5}}
    assert recipe["loader"] == {"dataloader": {"pin_memory": False}}
    assert tree["workload"]["dataset"] == {"name": "digits", "scale": 2}


@pytest.mark.parametrize("text", ["null", "true", "1e-3", "a: b", "a #b", "", "[x"])
def test_text_that_means_something_else_unquoted_is_quoted(text):
    (override,) = as_overrides({"x": text})
    assert override == f'x="{text}"'
