"""One entry of a listing in full, for `tune-speed list KIND NAME`."""

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tune_speed.core.config import Config, did_you_mean
from tune_speed.core.descriptions import descriptions
from tune_speed.core.errors import ConfigError
from tune_speed.reporting.listings.listings import SETTINGS, TABLES, resolve
from tune_speed.study.fields import component_of, properties
from tune_speed.training.recipe import Recipe

BOUNDS = {
    "minimum": "≥",
    "ge": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "le": "≤",
    "exclusiveMaximum": "<",
}
"""How a bound of a JSON Schema is written before its value."""


def explained(what: str, name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns an entry of the listing `rows`, with its source and a row on each of its fields.

    What has no fields, such as a metric, is its row alone. Raises: ConfigError without such a name.
    """
    row = next((each for each in rows if next(iter(each.values())) == name), None)
    if row is None:
        near = did_you_mean(name, (str(next(iter(each.values()))) for each in rows))
        raise ConfigError(f"{what} have no `{name}`{near or f'; `tune-speed list {what}` has all'}")
    place = {"optimizers": "optim"}.get(what, what)
    kind = TABLES[place][0].get(name) if place in TABLES else None
    if kind is None:
        is_setting = what == "speedups" and name in SETTINGS
        return {**row, "fields": [_field_row(Recipe, name)]} if is_setting else dict(row)
    return {
        "name": name,
        "about": row["about"],
        "source": source_of(kind),
        "written": resolve(f"{place}.{name}").written,
        "fields": [_field_row(kind, field) for field in kind.model_fields],
    }


def source_of(kind: type[Config]) -> str:
    """Returns what a docstring says after `Source:`, in one line; empty if it names none."""
    text = inspect.getdoc(kind) or ""
    return " ".join(text.partition("Source: ")[2].split("\n\n")[0].split())


def _field_row(kind: type[Config], name: str) -> dict[str, Any]:
    schema, is_required = properties(kind)[name], kind.model_fields[name].is_required()
    component = component_of(kind.model_fields[name])
    options = [{"enum": list(component.table)}] if component else schema.get("anyOf", [schema])
    return {
        "field": name,
        "type": " or ".join(dict.fromkeys(map(_type, options))),
        "range": " or ".join(filter(None, map(_range, options))),
        "default": "must be given" if is_required else json.dumps(schema.get("default")),
        "about": " ".join(descriptions(kind).get(name, "").split()),
    }


def _type(schema: Mapping[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", "component"))


def _range(schema: Mapping[str, Any]) -> str:
    if schema.get("type") == "array":
        return _range(schema["items"])
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(map(str, values))
    return ", ".join(f"{sign} {schema[key]:g}" for key, sign in BOUNDS.items() if key in schema)
