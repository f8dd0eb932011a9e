"""Whatever stands in a file: it is a study, or a ConfigError says why not."""

import copy
from pathlib import Path

import pytest
from helpers.tuning.spaces import NODES, SCALARS
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError, DataError
from tune_speed.study.file import load_recipe, load_study
from tune_speed.study.yaml import dump_yaml
from tune_speed.training.recipe import Recipe

STUDY = {
    "study": "small",
    "workload": {"dataset": {"name": "digits", "scale": 1}, "target": {"value": 0.5}, "split": {}},
    "recipe": {
        "model": {"resnet20": {"stem": "cifar"}},
        "optimizer": {"choices": {"sgd": {"lr": {"low": 0.1, "high": 1.0, "log": True}}}},
        "lr_schedule": {"one_cycle": {"pct_start": 0.3}},
        "epochs": {"low": 1, "high": 4},
        "batch_size": {"choices": [32, 64]},
    },
    "search": {"trials": 2, "resources": {"cpu": 1}, "time_budget": "3m"},
    "certify": {"top": 1},
    "run": {"device": "cpu"},
}


def paths(tree, path=()):
    yield path
    children = tree.items() if isinstance(tree, dict) else ()
    children = enumerate(tree) if isinstance(tree, list) else children
    for key, child in children:
        yield from paths(child, (*path, key))


KNOWN = ["sgd", "resnet20", "digits", "cifar10", "lr", "low", "choices", "name", "auto", 0, -1, 1e9]
JUNK = NODES | st.lists(SCALARS, max_size=2) | st.sampled_from(KNOWN)


@st.composite
def damaged_studies(draw):
    tree = copy.deepcopy(STUDY)
    path = draw(st.sampled_from([p for p in paths(tree) if p]))
    node = tree
    for key in path[:-1]:
        node = node[key]
    if draw(st.booleans()):
        node[path[-1]] = draw(JUNK)
    elif isinstance(node, dict):
        node[draw(st.sampled_from([k for k in KNOWN if isinstance(k, str)]))] = node.pop(path[-1])
    return tree


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("studies") / "damaged.yaml"


@given(tree=damaged_studies())
@settings(max_examples=75)
def test_damaged_file_is_a_study_or_refused(file: Path, tree):
    file.write_text(dump_yaml(tree))
    try:
        study = load_study(file)
    except ConfigError as error:
        assert error.problems and all(p.file and str(p) for p in error.problems)
    except DataError as error:
        assert "damaged.yaml" in str(error)
    else:
        for params in list(study.space.corners(limit=8))[:8]:
            Recipe.model_validate(study.space.build(params))


NAMES = [".".join(str(key) for key in path) for path in paths(STUDY) if path]


@given(
    name=st.sampled_from([*NAMES, *(name.removeprefix("recipe.") for name in NAMES)]) | st.text(),
    value=JUNK,
)
@settings(max_examples=60)
def test_any_override_is_taken_or_refused(file: Path, name, value):
    file.write_text(dump_yaml(STUDY))
    for load in (load_study, load_recipe):
        try:
            load(file, overrides=[f"{name}={dump_yaml(value)}"])
        except ConfigError as error:
            assert error.problems and all(str(p).isprintable() for p in error.problems)
        except DataError as error:
            assert "workload.dataset" in str(error)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ("closed_loop: true", r"`closed_loop` must be false where `staleness` is 0"),
        ("closed_loop: {choices: [false, true]}", r"`closed_loop` must be false where"),
        ("closed_loop: true, staleness: 2", "staleness must be 0: a recipe's training is"),
    ],
)
def test_a_loop_for_asynchronous_training_is_refused_by_its_line(tmp_path, fields, reason):
    recipe = f"recipe:\n  model: resnet20\n  optimizer: {{yellowfin: {{{fields}}}}}"
    text = f"workload: digits\n{recipe}\n  epochs: {{low: 1, high: 2}}\n  batch_size: 32\n"
    (tmp_path / "a_study.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"a_study.yaml:[24]: recipe.*{reason}"):
        load_study(tmp_path / "a_study.yaml")
