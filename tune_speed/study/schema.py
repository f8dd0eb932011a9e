"""The fields of a study file, and their JSON Schema, without rules between fields."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field

from tune_speed.core.config import Component, Config, descriptions
from tune_speed.core.errors import ConfigError
from tune_speed.core.folders import STUDY_NAME
from tune_speed.study import settings
from tune_speed.study.fields import component_of, entries_of, nested_of, number_types, properties
from tune_speed.study.mistake import shown
from tune_speed.study.replication import ReplicationConfig, Scale
from tune_speed.study.short_forms import GoalConfig
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import WORKLOADS, Workload


def check_study_name(name: str) -> None:
    """Refuses a name that a folder cannot safely have. Raises: ConfigError."""
    if not re.fullmatch(STUDY_NAME, name):
        raise ConfigError.of("study", f"must match {STUDY_NAME}", given=shown(name))


class StudySchema(Config):
    """What must be reached, what may vary, and how to search."""

    study: Annotated[str, Field(pattern=STUDY_NAME)] | None = None
    """Name of the study; null: the file's name without its ending."""
    workload: Workload
    """What must be reached: a mapping, or the name of a built-in workload."""
    goal: GoalConfig | None = None
    """The best value of a metric within a training time, in place of a target."""
    recipe: Recipe
    """How to train; any value in it may be searched."""
    search: settings.SearchConfig | None = None
    """How the space is searched."""
    certify: settings.CertifyConfig | None = None
    """How the best trials are run again on fresh seeds; null: they are not."""
    tracking: settings.TrackingConfig | None = None
    """What is stored in MLflow other than measurements; null: nothing."""
    run: settings.RunConfig | None = None
    """How a single training is run."""
    ablate: settings.AblateConfig | None = None
    """What `tune-speed ablate` changes about the recipe."""
    replication: ReplicationConfig | None = None
    """Of a replication: which experiment it is, and our figures next to its own."""
    scale: Scale | None = None
    """Smaller profiles of a replication, by name, such as `cpu`."""


JsonSchema = dict[str, Any]
SHORT_FORMS: Mapping[str, JsonSchema] = {
    "target": {"type": "number", "description": "Of `accuracy`."},
    "max_train_s": {"type": "string", "description": "A duration, such as `90s` or `1m`."},
}
# Characters of a part up to which it is repeated: a reference to it would be about as long.
SHORT = 80


def json_schema() -> JsonSchema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tune_speed study",
        **_once_each(_config_schema(StudySchema, searched=False)),
    }


def _once_each(whole: JsonSchema) -> JsonSchema:
    counts: Counter[str] = Counter()
    names: dict[str, str] = {}
    definitions: JsonSchema = {}

    def count(part: JsonSchema, name: str) -> JsonSchema:
        counts[text := json.dumps(part)] += 1
        # What is only in a part that is repeated is repeated no more once that is not.
        return part if counts[text] > 1 else _with_parts(part, name, count)

    def share(part: JsonSchema, name: str) -> JsonSchema:
        text = json.dumps(part)
        if counts[text] == 1 or len(text) <= SHORT:
            return _with_parts(part, name, share)
        if text not in names:
            names[text] = f"{name}_{len(names) + 1}"
            definitions[names[text]] = _with_parts(part, name, share)
        return {"$ref": f"#/$defs/{names[text]}"}

    count(whole, "study")
    return {**share(whole, "study"), "$defs": definitions}


def _with_parts(
    part: JsonSchema, name: str, change: Callable[[JsonSchema, str], JsonSchema]
) -> JsonSchema:
    changed = dict(part)
    if "properties" in part:
        changed["properties"] = {n: change(each, n) for n, each in part["properties"].items()}
    if "anyOf" in part:
        changed["anyOf"] = [change(each, name) for each in part["anyOf"]]
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            changed[key] = change(part[key], name)
    return changed


def _config_schema(kind: type[Config], *, searched: bool) -> JsonSchema:
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    fields = {name: _field_schema(kind, name, searched=searched) for name in kind.model_fields}
    schema = _object(" ".join((kind.__doc__ or "").split()), fields, required)
    return {**schema, "additionalProperties": kind.model_config.get("extra") == "allow"}


def _object(description: str, fields: JsonSchema, required: list[str]) -> JsonSchema:
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
    if kind is Workload and name in SHORT_FORMS:
        options.append(SHORT_FORMS[name])
    return {**described, **(options[0] if len(options) == 1 else {"anyOf": options})}


# Not pydantic's own schema of a field alone, which knows nothing of values that are searched.
def _options(kind: type[Config], name: str, *, searched: bool) -> list[JsonSchema]:
    field = kind.model_fields[name]
    component, nested = component_of(field), nested_of(field)
    if component is not None:
        return _component_options(component, searched=searched)
    if nested is not None:
        names = [{"enum": list(WORKLOADS)}] if kind is StudySchema and name == "workload" else []
        empty = [] if field.is_required() else [{"type": "null"}]
        return [*names, _config_schema(nested, searched=searched), *empty]
    schema = properties(kind)[name]
    entries = entries_of(field)
    if entries is not None:
        entry = _config_schema(entries, searched=False)
        holds = {"array": {"items": entry}, "object": {"additionalProperties": entry}}
        options = map(_constraints, schema.get("anyOf", [schema]))
        return [{**option, **holds.get(str(option.get("type")), {})} for option in options]
    value = _constraints(schema)
    is_list = value.get("type") == "array"  # A list is one fixed value.
    if not searched or is_list:
        return [value]
    listed = _choices_schema({"type": "array", "items": value})
    bare, numbers = listed["properties"]["choices"], number_types(kind, name)
    if not numbers:
        return [value, listed, bare]
    ranged = _range_schema(value, "number" if "number" in numbers else "integer")
    return [value, ranged, listed, bare]


def _constraints(schema: JsonSchema) -> JsonSchema:
    described = ("title", "description", "default")
    return {key: part for key, part in schema.items() if key not in described}


def _range_schema(value: JsonSchema, number: str) -> JsonSchema:
    ends = next(each for each in value.get("anyOf", [value]) if each.get("type") == number)
    about_step = "Distance of neighbouring values; not with log."
    fields = {
        "low": {**ends, "description": "Least value."},
        "high": {**ends, "description": "Greatest value."},
        "log": {"type": "boolean", "description": "Even over the logarithm; needs low > 0."},
        "step": {"type": number, "exclusiveMinimum": 0, "description": about_step},
    }
    return _object("Searched over a range, both ends included.", fields, ["low", "high"])


def _choices_schema(choices: Mapping[str, Any]) -> JsonSchema:
    bounds = {"minItems": 1, "uniqueItems": True, "minProperties": 1}
    # The bounds of the other type would hold for any value of this one, and say nothing.
    own = {k: v for k, v in bounds.items() if ("Items" in k) == (choices["type"] == "array")}
    return _object("Searched over these values.", {"choices": {**choices, **own}}, ["choices"])


def _component_options(component: Component, *, searched: bool) -> list[JsonSchema]:
    entries = {n: _config_schema(k, searched=searched) for n, k in component.table.items()}
    bare = [name for name, entry in entries.items() if not entry["required"]]
    names: JsonSchema = {"enum": bare, "description": "With the defaults of every field."}
    if component.tag is not None:
        tagged: list[JsonSchema] = []
        for name, entry in entries.items():
            fields = {component.tag: {"const": name}, **entry["properties"]}
            required = [component.tag, *entry["required"]]
            tagged.append({**entry, "properties": fields, "required": required})
        return [names, *tagged]
    nested = [
        _object(entry["description"], {name: _or_null(entry)}, [name])
        for name, entry in entries.items()
    ]
    if not searched:
        return [names, *nested]
    listed = _choices_schema({"type": "array", "items": names})
    fields = {name: _or_null(entry) for name, entry in entries.items()}
    branched = {"type": "object", "properties": fields, "additionalProperties": False}
    bare = listed["properties"]["choices"]
    return [names, *nested, listed, bare, _choices_schema(branched)]


def _or_null(entry: JsonSchema) -> JsonSchema:
    return entry if entry["required"] else {"anyOf": [entry, {"type": "null"}]}
