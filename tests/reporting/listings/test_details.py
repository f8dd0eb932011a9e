import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.reporting.listings.listings import BATCH_MS, SETTINGS, TABLES, explained, listing

KINDS = {"optim": "optimizers"}


def entry(what, name):
    return explained(what, name, listing(what))


def fields_of(what, name):
    return {row["field"]: row for row in entry(what, name)["fields"]}


def test_an_optimizer_is_explained_with_its_source_and_its_fields():
    found, fields = entry("optimizers", "sgd"), fields_of("optimizers", "sgd")
    assert found["about"].startswith("SGD with momentum m")
    assert found["source"].startswith('Sutskever et al., "On the importance of initialization')
    assert found["written"] == "optimizer: sgd"
    assert fields["lr"]["default"] == "must be given"
    about = "Momentum, in [0, 1); a schedule that cycles the momentum replaces it."
    assert fields["momentum"] == {
        "field": "momentum",
        "type": "number",
        "range": "≥ 0, < 1",
        "default": "0.9",
        "about": about,
    }
    assert (fields["lr_scales"]["type"], fields["lr_scales"]["range"]) == ("list of number", "≥ 0")
    assert (fields["bias_lr"]["type"], fields["bias_lr"]["range"]) == ("number or null", "> 0")


def test_a_field_that_takes_words_has_them_as_its_range():
    assert fields_of("models", "resnet50")["stem"]["range"] == "cifar, native"
    workers = fields_of("loaders", "dataloader")["workers"]
    assert (workers["type"], workers["range"]) == ("integer or string", "≥ 0, ≤ 256 or auto")


@pytest.mark.parametrize("place", TABLES)
def test_every_field_of_every_entry_has_a_type_and_a_meaning(place):
    what = KINDS.get(place, place)
    for name in TABLES[place][0]:
        rows = entry(what, name)["fields"]
        assert all(row["type"] and row["default"] and row["about"] for row in rows), name


def test_a_setting_of_the_recipe_is_explained_as_its_field():
    assert all(list(fields_of("speedups", name)) == [name] for name in SETTINGS)


def test_what_has_no_fields_is_its_row():
    assert entry("metrics", "accuracy") == listing("metrics")[0]


@pytest.mark.parametrize(
    ("name", "told"), [("sdg", "did you mean `sgd`?"), ("zzzqq", "`tune-speed list optimizers`")]
)
def test_an_unknown_name_is_told_with_what_to_try(name, told):
    with pytest.raises(ConfigError, match="optimizers have no") as caught:
        entry("optimizers", name)
    assert told in str(caught.value)


def test_each_change_to_images_is_listed_with_its_fields_and_has_a_measured_example():
    rows = {row["name"]: row for row in listing("augmentation")}
    # How often images are mixed is no cost of its own.
    assert set(rows) == {*BATCH_MS, "mixup_prob", "mixup_switch_prob"}
    assert {name: rows[name]["batch_ms"] for name in BATCH_MS} == BATCH_MS
    assert {name.partition(":")[0] for name in rows} == set(Augmentation.model_fields)
    for name in ("auto: trivial_augment", "color_jitter", "erasing"):
        assert "torchvision's" in rows[name]["source"] or "timm's" in rows[name]["source"]
    fields = {row["field"]: row for row in entry("augmentation", "color_jitter")["fields"]}
    assert fields["hue"]["range"] == "≥ 0, ≤ 0.5"
    (pad,) = entry("augmentation", "pad")["fields"]
    assert (pad["field"], pad["default"]) == ("pad", "0")
