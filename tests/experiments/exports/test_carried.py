from fnmatch import fnmatchcase

import pytest
from helpers.experiments.exports import RECIPES, SGD, small

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.exports.carried import Form, Setting, refuse_what_is_lost, settings_of
from tune_speed.experiments.exports.script import LIGHTNING, SCRIPT
from tune_speed.experiments.exports.timm_arguments import TIMM

FORMS = (SCRIPT, LIGHTNING, TIMM)
OTHERS = (
    "{timm: {name: resnet18}}",
    "{torchvision: {name: resnet18}}",
    "{vit: {}}",
    "{resnet: {}}",
)
NOTHING = Form(name="nothing", only={"recipe.epochs": (7.0,)}, carried=("recipe.batch_*",))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_it_was_decided_of_every_field_whether_a_form_carries_it(form: Form) -> None:
    """A new field of a recipe is found here until it has a place in each form."""
    files = [small(text) for text in RECIPES.values()]
    files += [small(f"{SGD}\n  model: {model}") for model in OTHERS]
    patterns = (*form.only, *form.carried, *form.other_speed)
    paths = {setting.path for file in files for setting in settings_of(file)}
    assert len(paths) > 80
    assert sorted(p for p in paths if not any(fnmatchcase(p, each) for each in patterns)) == [
        # Refused as a whole where the form has not got them.
        path for path in sorted(paths)
        if form is TIMM and path.startswith("recipe.speedups.") and path.count(".") > 2
    ]  # fmt: skip


def test_a_field_without_a_place_is_refused_unless_it_is_as_by_default() -> None:
    def refused(recipe: str) -> list[str]:
        with pytest.raises(ConfigError) as error:
            refuse_what_is_lost(NOTHING, small(recipe))
        return [problem.path for problem in error.value.problems]

    plain = refused(SGD)
    assert "recipe.batch_size" not in plain and "recipe.label_smoothing" not in plain
    # Of the entry `sgd` the name says all.
    assert plain[:3] == ["recipe.model", "recipe.optimizer", "recipe.epochs"]
    more = refused(f"{SGD}\n  label_smoothing: 0.1\n  speedups: {{averaging: ema}}")
    assert set(more) - set(plain) == {"recipe.label_smoothing", "recipe.speedups.averaging"}


def test_settings_have_the_paths_that_a_file_has() -> None:
    found = {setting.path: setting for setting in settings_of(small(RECIPES["averaged"]))}
    assert found["recipe.optimizer"] == Setting("recipe.optimizer", "adam", False, is_entry=True)
    assert found["recipe.optimizer.adam.beta1"].value == 0.8
    assert found["recipe.optimizer.adam.beta2"].is_default
    assert found["recipe.speedups.views.tta.views"].value == 6
    assert found["workload.dataset"].value == "digits"
    assert found["workload.dataset.digits.scale"].value == 1
