import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.study.file import load_study

TEXT = """\
workload: digits
recipe:
  model: resnet20
  optimizer:
    choices:
      sgd: {lr: {low: 1e-2, high: 1.0, log: true}}
      adamw: {lr: 1e-3}
  lr_schedule: {one_cycle: {pct_start: {low: 0.1, high: 0.5}}}
  epochs: {low: 1, high: 4}
  batch_size: 64
"""


@pytest.fixture
def tree_with(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_text(TEXT)
    return lambda *overrides: load_study(path, overrides=overrides).tree


@pytest.fixture
def texts_with(tree_with):
    def texts(*overrides):
        with pytest.raises(ConfigError) as caught:
            tree_with(*overrides)
        return [str(problem) for problem in caught.value.problems]

    return texts


def test_path_is_the_recipes_unless_it_begins_with_a_section(tree_with):
    tree = tree_with("batch_size=32", "recipe.epochs=2", "search.trials=7", "run.device=cpu")
    assert (tree["recipe"]["batch_size"], tree["recipe"]["epochs"]) == (32, 2)
    assert (tree["search"], tree["run"]) == ({"trials": 7}, {"device": "cpu"})


def test_value_is_yaml(tree_with):
    tree = tree_with("label_smoothing=1e-1", "clip_norm=null", "epochs={low: 2, high: 3}")
    assert tree["recipe"]["label_smoothing"] == 0.1
    assert tree["recipe"]["clip_norm"] is None
    assert tree["recipe"]["epochs"] == {"low": 2, "high": 3}


def test_value_fixes_a_searched_leaf_in_its_branch(tree_with):
    optimizer = tree_with("optimizer.sgd.lr=0.1")["recipe"]["optimizer"]
    assert optimizer == {"choices": {"sgd": {"lr": 0.1}, "adamw": {"lr": 1e-3}}}


def test_range_can_be_widened(tree_with):
    assert tree_with("epochs.high=9")["recipe"]["epochs"] == {"low": 1, "high": 9}


def test_component_is_replaced_and_then_needs_no_name(tree_with):
    tree = tree_with("optimizer=adam", "optimizer.lr=0.1", "optimizer.adam.beta1=0.8")
    assert tree["recipe"]["optimizer"] == {"adam": {"lr": 0.1, "beta1": 0.8}}


def test_only_component_may_go_unnamed(tree_with):
    recipe = tree_with("lr_schedule.pct_start=0.2", "model.stem=native")["recipe"]
    assert recipe["lr_schedule"] == {"one_cycle": {"pct_start": 0.2}}
    assert recipe["model"] == {"resnet20": {"stem": "native"}}


def test_component_that_is_not_there_yet_is_named(tree_with):
    tree = tree_with("loader.dataloader.workers=1", "augmentation.pad=2")
    assert tree["recipe"]["loader"] == {"dataloader": {"workers": 1}}
    assert tree["recipe"]["augmentation"] == {"pad": 2}


def test_listed_components_get_fields(tree_with):
    tree = tree_with("loader={choices: [dataloader, resident]}", "loader.dataloader.workers=1")
    choices = tree["recipe"]["loader"]["choices"]
    assert choices == {"dataloader": {"workers": 1}, "resident": {}}


def test_named_workload_can_be_changed(tree_with):
    workload = tree_with("workload.target.value=0.9", "workload.dataset.scale=2")["workload"]
    assert workload["target"]["value"] == 0.9
    assert workload["dataset"] == {"name": "digits", "scale": 2}
    named = tree_with("workload={dataset: digits, target: {value: 0.5}}", "workload=digits")
    assert named["workload"] == tree_with()["workload"]


# Override, wrong name, and the name that was meant.
NO_FIELD = [
    ("optimizer.sgd.lrr=0.1", "optimizer.sgd.lrr", "optimizer.sgd.lr"),
    ("lr_schedule.pct_strt=1", "lr_schedule.pct_strt", "lr_schedule.pct_start"),
    ("batch_sise=1", "batch_sise", "batch_size"),
    ("recipe.batch_sise=1", "recipe.batch_sise", "recipe.batch_size"),
    ("workload.target.valu=1", "workload.target.valu", "workload.target.value"),
    ("epochs.hihg=1", "epochs.hihg", "epochs.high"),
    ("trials=5", "trials", "search.trials"),
    ("seed=5", "seed", "search.seed"),
    ("serch.trials=5", "serch", "search"),
]


@pytest.mark.parametrize(("override", "name", "meant"), NO_FIELD)
def test_unknown_field_is_named_with_the_nearest(texts_with, override, name, meant):
    (text,) = texts_with(override)
    assert text.startswith(f"--set {override}: no field `{name}`; did you mean `{meant}`?")


LEADS_NOWHERE = {
    "lr_schedule.step_drops.gamma=1": "no entry `lr_schedule.step_drops`; did you mean `multi",
    "batch_size.x=1": "no field `batch_size.x`",
    "optimizer.lr=0.1": "`optimizer` must be followed by a name: `optimizer.sgd`, `optimizer.",
    "optimizer.adam.lr=1": "`optimizer` must be adam, but is sgd, adamw; try `--set optimizer=",
    "loader.workers=1": "`loader` must be followed by a name: `loader.dataloader`, `loader.",
    "batch_size": "must be written as path=value",
    "=1": "must be written as path=value",
    "model..stem=1": "must be written as path=value",
    "batch_size=": "must have a value after `=`; try `batch_size=null` for none",
    "batch_size=[1": "the value must be YAML",
    "epochs=.nan": "the value must be a finite number",
}


@pytest.mark.parametrize("override", LEADS_NOWHERE)
def test_override_that_leads_nowhere_says_why(texts_with, override):
    (text,) = texts_with(override)
    assert text.startswith(f"--set {override}: {LEADS_NOWHERE[override]}")


def test_near_name_is_given_as_it_would_be_written(texts_with):
    (text,) = texts_with("optimizer=sgd", "optimizer.lr=0.1", "optimizer.lrr=0.1")
    assert text.startswith(
        "--set optimizer.lrr=0.1: no field `optimizer.lrr`; did you mean `optimizer.lr`?"
    )


def test_wrong_value_is_laid_to_its_override(texts_with):
    (text,) = texts_with("batch_size=-1")
    assert text == (
        "--set batch_size=-1: recipe.batch_size: must be greater than 0 or 'auto', but got -1."
    )


def test_file_and_overrides_are_checked_in_one_go(texts_with):
    texts = texts_with("optimizer.sgd.lr.low=2", "search.trials=none", "x=1")
    assert len(texts) == 3
    assert texts[0].startswith("--set x=1: no field `x`")
    assert texts[1].startswith("--set optimizer.sgd.lr.low=2: recipe.optimizer.sgd.lr.low: `low`")
    assert texts[2].startswith("--set search.trials=none: search.trials: must be an integer")
