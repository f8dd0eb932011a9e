"""What a field of a config takes, read from its class: a component, nested fields, numbers."""

import functools
import types
import typing
from typing import Any

from pydantic.fields import FieldInfo

from tune_speed.core.config import Component, Config


def component_of(field: FieldInfo) -> Component | None:
    """Returns the table whose entries the field holds, or None."""
    metadata = [*field.metadata, *_annotations(field.annotation)]
    return next((mark for mark in metadata if isinstance(mark, Component)), None)


def _annotations(annotation: Any) -> list[Any]:
    inner = [_annotations(part) for part in typing.get_args(annotation)]
    return [*getattr(annotation, "__metadata__", ()), *(mark for marks in inner for mark in marks)]


def nested_of(field: FieldInfo) -> type[Config] | None:
    """Returns the config class whose fields the field holds, or None."""
    return next((kind for kind in _members(field.annotation) if _is_config(kind)), None)


def entries_of(field: FieldInfo) -> type[Config] | None:
    """Returns the config class of each entry of a list, or value of a mapping; None for others."""
    holders = (
        kind for kind in _members(field.annotation) if typing.get_origin(kind) in (list, dict)
    )
    kinds = (typing.get_args(holder)[-1] for holder in holders)
    return next((kind for kind in kinds if _is_config(kind)), None)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or else the annotation alone."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Config)


@functools.cache
def properties(kind: type[Config]) -> dict[str, Any]:
    """Returns the JSON Schema of each field of `kind`."""
    schema = kind.model_json_schema()
    fields: dict[str, Any] = schema.get("properties", {})
    return fields


def number_types(kind: type[Config], name: str) -> frozenset[str]:
    """Returns which of `integer` and `number` a field takes: none for text, both for a union."""
    schema = properties(kind)[name]
    options = [schema, *schema.get("anyOf", [])]
    return frozenset({"integer", "number"} & {str(option.get("type")) for option in options})
