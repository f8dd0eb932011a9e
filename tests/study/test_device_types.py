"""Types of device that a study chooses among: a parameter of its space, of no recipe."""

from typing import Any

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.custom.shipping import packed
from tune_speed.study.file import StudyFile, own_study_of, study_of
from tune_speed.study.yaml import scan_yaml
from tune_speed.training.recipe import Recipe

STUDY = """
study: tiny
workload: {dataset: digits, target: {value: 0.9}}
goal: {minimise: cost}
search: {resources: {gpu: 1, device_types: [H100, A10]}}
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  epochs: 3
  batch_size: 32
"""
TYPES = "search.resources.device_types"


def own_loop(params: Any, run: Any) -> None:
    """A training function; nobody calls it."""


def load(text: str = STUDY, *overrides: str) -> StudyFile:
    return study_of(scan_yaml(text, file="tiny.yaml"), overrides=overrides, check_data=False)


def mistakes(text: str, *overrides: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return {problem.path: problem.must for problem in caught.value.problems}


def test_the_type_is_searched_and_no_recipe_has_it() -> None:
    space = load().space
    assert [p.name for p in space.parameters] == ["optimizer.sgd.lr", "device_type"]
    assert space.parameters[1].choices == ("H100", "A10")
    tree = space.build({"optimizer.sgd.lr": 0.1, "device_type": "A10"})
    assert Recipe.model_validate(tree).optimizer.model_dump()["lr"] == 0.1
    with pytest.raises(ConfigError, match='one of "H100", "A10"'):
        space.build({"optimizer.sgd.lr": 0.1, "device_type": "T4"})


def test_other_types_are_another_space() -> None:
    one = load(STUDY.replace("device_types: [H100, A10]", "device_type: H100")).space
    hashes = {load().space.hash, load(STUDY.replace("A10", "T4")).space.hash, one.hash}
    assert len(hashes) == 3 and [p.name for p in one.parameters] == ["optimizer.sgd.lr"]


def test_a_point_to_evaluate_may_name_its_type() -> None:
    assert load(STUDY, "search.points_to_evaluate=[{device_type: A10}]").search.points_to_evaluate
    (must,) = mistakes(STUDY, "search.points_to_evaluate=[{device_type: T4}]").values()
    assert 'one of "H100", "A10"' in must


def test_times_alone_do_not_compare_types() -> None:
    found = mistakes(STUDY.replace("goal: {minimise: cost}", ""))
    assert "only money compares devices" in found[TYPES]


@pytest.mark.parametrize(
    ("change", "path", "must"),
    [
        ("search.warm_start=[other]", "search.warm_start", "its trials chose none"),
        ("search.concurrent=auto", "search.concurrent", "of which one would be measured"),
        (f"{TYPES}=[H100]", TYPES, "must be two or more, each once"),
        (f"{TYPES}=[H100, H100]", TYPES, "must be two or more, each once"),
        (
            "search.resources.device_type=H100",
            "search.resources.device_type",
            "must be left out where device_types are given",
        ),
    ],
)
def test_what_several_types_do_not_go_with_is_refused(change: str, path: str, must: str) -> None:
    assert must in mistakes(STUDY, change)[path]


def test_a_training_function_runs_on_one_type() -> None:
    text = STUDY.replace("goal: {minimise: cost}", "").replace("{dataset: digits, ", "{")
    with pytest.raises(ConfigError, match="only money compares devices"):
        own_study_of(scan_yaml(text, file="own.yaml"), packed(own_loop))
