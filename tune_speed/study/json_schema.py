"""The JSON Schema of a study file, from which editors complete and check the YAML.

It says of every field what it takes, or how it is searched. Rules between fields, and those that
need the data, are beyond it: `tune-speed search` checks them at load.
"""

from collections.abc import Mapping
from typing import Any

from tune_speed.core.config import Component, Config
from tune_speed.core.descriptions import descriptions
from tune_speed.study.fields import (
    component_of,
    entries_of,
    nested_of,
    number_types,
    properties,
)
from tune_speed.study.schema import StudySchema
from tune_speed.training.workload import WORKLOADS

JsonSchema = dict[str, Any]


def json_schema() -> JsonSchema:
    """Returns the schema of a study file (JSON Schema 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tune_speed study",
        **_config_schema(StudySchema, searched=False),
    }


def _config_schema(kind: type[Config], *, searched: bool) -> JsonSchema:
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    fields = {name: _field_schema(kind, name, searched=searched) for name in kind.model_fields}
    description = " ".join((kind.__doc__ or "").split())
    return {
        "type": "object",
        "description": description,
        "properties": fields,
        "required": required,
        "additionalProperties": False,
    }


def _field_schema(kind: type[Config], name: str, *, searched: bool) -> JsonSchema:
    field = kind.model_fields[name]
    if kind is StudySchema and name == "recipe":
        searched = True
    described: JsonSchema = {"title": name}
    if text := descriptions(kind).get(name):
        described["description"] = " ".join(text.split())
    if not field.is_required() and "default" in properties(kind)[name]:
        described["default"] = properties(kind)[name]["default"]
    options = _options(kind, name, searched=searched)
    return {**described, **(options[0] if len(options) == 1 else {"anyOf": options})}


def _options(kind: type[Config], name: str, *, searched: bool) -> list[JsonSchema]:
    """Returns every form that a field's value may have."""
    field = kind.model_fields[name]
    component, nested = component_of(field), nested_of(field)
    if component is not None:
        return _component_options(component, searched=searched)
    if nested is not None:
        names = [{"enum": list(WORKLOADS)}] if kind is StudySchema and name == "workload" else []
        empty = [] if field.is_required() else [{"type": "null"}]
        return [*names, _config_schema(nested, searched=searched), *empty]
    entries = entries_of(field)
    if entries is not None:
        return _entries_options(properties(kind)[name], _config_schema(entries, searched=False))
    value = _value_schema(kind, name)
    return [value, *_leaf_options(kind, name, value)] if searched else [value]


def _entries_options(schema: JsonSchema, entry: JsonSchema) -> list[JsonSchema]:
    """Returns the options of a list or mapping of configs, with `entry` written out in each."""
    holds = {"array": "items", "object": "additionalProperties"}
    options: list[JsonSchema] = []
    for option in schema.get("anyOf", [schema]):
        kept = {key: part for key, part in option.items() if key not in _OWN_KEYS}
        place = holds.get(str(kept.get("type")))
        options.append({**kept, place: entry} if place else kept)
    return options


def _value_schema(kind: type[Config], name: str) -> JsonSchema:
    schema = properties(kind)[name]
    return {key: part for key, part in schema.items() if key not in _OWN_KEYS}


_OWN_KEYS = {"title", "description", "default"}


def _leaf_options(kind: type[Config], name: str, value: JsonSchema) -> list[JsonSchema]:
    if value.get("type") == "array":  # A list is one fixed value.
        return []
    listed = _choices_schema({"type": "array", "items": value})
    numbers = number_types(kind, name)
    if not numbers:
        return [listed]
    return [_range_schema(value, "number" if "number" in numbers else "integer"), listed]


def _range_schema(value: JsonSchema, number: str) -> JsonSchema:
    options = value.get("anyOf", [value])
    ends = next(option for option in options if option.get("type") == number)
    return {
        "type": "object",
        "description": "Searched over a range, both ends included.",
        "properties": {
            "low": {**ends, "description": "Least value."},
            "high": {**ends, "description": "Greatest value."},
            "log": {"type": "boolean", "description": "Even over the logarithm; needs low > 0."},
            "step": {
                "type": number,
                "exclusiveMinimum": 0,
                "description": "Distance of neighbouring values; not with log.",
            },
        },
        "required": ["low", "high"],
        "additionalProperties": False,
    }


def _choices_schema(choices: Mapping[str, Any]) -> JsonSchema:
    bounds = {"minItems": 1, "uniqueItems": True, "minProperties": 1}
    kept = {k: v for k, v in bounds.items() if ("Items" in k) == (choices["type"] == "array")}
    return {
        "type": "object",
        "description": "Searched over these values.",
        "properties": {"choices": {**choices, **kept}},
        "required": ["choices"],
        "additionalProperties": False,
    }


def _component_options(component: Component, *, searched: bool) -> list[JsonSchema]:
    entries = {n: _config_schema(k, searched=searched) for n, k in component.table.items()}
    bare = [name for name, entry in entries.items() if not entry["required"]]
    names: JsonSchema = {"enum": bare, "description": "With the defaults of every field."}
    if component.tag is not None:
        return [names, *(_tagged(component.tag, name, entry) for name, entry in entries.items())]
    nested = [_nested(name, entry) for name, entry in entries.items()]
    if not searched:
        return [names, *nested]
    listed = _choices_schema({"type": "array", "items": names})
    branched = _choices_schema(
        {
            "type": "object",
            "properties": {n: _or_null(entry) for n, entry in entries.items()},
            "additionalProperties": False,
        }
    )
    return [names, *nested, listed, branched]


def _tagged(tag: str, name: str, entry: JsonSchema) -> JsonSchema:
    fields = {tag: {"const": name}, **entry["properties"]}
    return {**entry, "properties": fields, "required": [tag, *entry["required"]]}


def _nested(name: str, entry: JsonSchema) -> JsonSchema:
    return {
        "type": "object",
        "description": entry["description"],
        "properties": {name: _or_null(entry)},
        "required": [name],
        "additionalProperties": False,
    }


def _or_null(entry: JsonSchema) -> JsonSchema:
    """Returns `entry`, also left empty where no field of it is required."""
    return entry if entry["required"] else {"anyOf": [entry, {"type": "null"}]}
