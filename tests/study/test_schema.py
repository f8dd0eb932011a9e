import copy
import json
from functools import cache

import jsonschema
import pytest

from tune_speed.components.models import MODELS
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.schedules import SCHEDULES
from tune_speed.data import LOADERS
from tune_speed.study.file import shipped_files
from tune_speed.study.schema import json_schema
from tune_speed.study.yaml import parse_yaml, read_yaml

STUDY = parse_yaml("""
workload: {dataset: {name: cifar10, root: data}, target: {value: 0.9}}
recipe:
  model: {choices: [resnet20]}
  optimizer: {choices: {sgd: {lr: {low: 0.1, high: 1, log: true}}, adamw: {lr: 1e-3}}}
  lr_schedule: one_cycle
  epochs: {low: 1, high: 4.5}
  effective_batch_size: {low: 64, high: 256, step: 64}
  accumulation_steps: auto
  clip_norm: {choices: [null, 1.0]}
  loader: {resident:}
search: {time_budget: 30m}
""").tree


@cache
def valid() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema())


def test_schema_is_one_itself():
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_the_schema_says_a_repeated_part_once():
    size_kib = len(json.dumps(json_schema(), indent=2)) / 1024
    assert 50 < size_kib < 460


def resolved(part):
    reference = part.get("$ref")
    return part if reference is None else json_schema()["$defs"][reference.rpartition("/")[2]]


def test_shipped_files_are_valid():
    for path in shipped_files().values():
        valid().validate(read_yaml(path).tree)


def test_every_form_of_a_field_is_valid():
    valid().validate(STUDY)
    valid().validate({**STUDY, "workload": "digits", "search": None})


WRONG = {
    "unknown section": (["serch"], {}),
    "unknown workload": (["workload"], "digit"),
    "searched workload": (["workload", "target", "value"], {"low": 0.1, "high": 0.2}),
    "unknown data set": (["workload", "dataset", "name"], "cifar11"),
    "unknown field": (["recipe", "batchsize"], 64),
    "wrong type": (["recipe", "epochs"], "4"),
    "out of bounds": (["recipe", "epochs"], 0),
    "range without an end": (["recipe", "epochs"], {"low": 1}),
    "unknown key of a range": (["recipe", "epochs", "lgo"], True),
    "range end out of bounds": (["recipe", "epochs", "low"], 0),
    "float range for integers": (["recipe", "effective_batch_size", "low"], 0.5),
    "range for text": (["recipe", "precision"], {"low": 1, "high": 2}),
    "no choices": (["recipe", "precision"], {"choices": []}),
    "equal choices": (["recipe", "precision"], {"choices": ["fp32", "fp32"]}),
    "wrong choice": (["recipe", "precision"], {"choices": ["fp23"]}),
    "unknown component": (["recipe", "model"], "resnet21"),
    "component that needs fields": (["recipe", "optimizer"], "sgd"),
    "unknown field of a branch": (["recipe", "optimizer", "choices", "sgd", "lrr"], 1),
    "two components": (["recipe", "model"], {"resnet20": {}, "timm": {"name": "resnet18"}}),
    "searched setting": (["search", "trials"], {"choices": [1, 2]}),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_broken_file_is_not_valid(mistake):
    path, value = WRONG[mistake]
    tree = copy.deepcopy(STUDY)
    node = tree
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert not valid().is_valid(tree)


@pytest.mark.parametrize("missing", ["workload", "recipe"])
def test_section_that_must_be_there_is_required(missing):
    assert not valid().is_valid({name: part for name, part in STUDY.items() if name != missing})


@pytest.mark.parametrize(
    ("field", "table"),
    [
        ("model", MODELS),
        ("optimizer", OPTIMIZERS),
        ("lr_schedule", SCHEDULES),
        ("loader", LOADERS),
    ],
)
def test_every_entry_of_a_table_is_in_the_schema(field, table):
    options = json_schema()["properties"]["recipe"]["properties"][field]["anyOf"]
    names = [name for option in options for name in resolved(option).get("properties", {})]
    assert set(table) <= set(names)
