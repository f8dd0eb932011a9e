"""Checks a tree against config classes, field by field; rules between them: `validation`."""

import functools
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pydantic
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tune_speed.core.config import Component, Config, descriptions
from tune_speed.study import parameter
from tune_speed.study.mistake import Mistake, near_miss, shown
from tune_speed.study.yaml import TreePath


def component_of(field: FieldInfo) -> Component | None:
    # pydantic moves only the outermost `Annotated` to `metadata`; that inside a union stays there.
    metadata = [*field.metadata, *_annotations(field.annotation)]
    return next((mark for mark in metadata if isinstance(mark, Component)), None)


def _annotations(annotation: Any) -> list[Any]:
    inner = [_annotations(part) for part in typing.get_args(annotation)]
    return [*getattr(annotation, "__metadata__", ()), *(mark for marks in inner for mark in marks)]


def nested_of(field: FieldInfo) -> type[Config] | None:
    return _first_config(_members(field.annotation))


def entries_of(field: FieldInfo) -> type[Config] | None:
    """Returns the config class of each entry of a list, or value of a mapping; None for others."""
    kinds = _members(field.annotation)
    holders = [kind for kind in kinds if typing.get_origin(kind) in (list, dict)]
    return _first_config(typing.get_args(holder)[-1] for holder in holders)


def _members(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _first_config(kinds: Iterable[Any]) -> type[Config] | None:
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Config)), None)


@functools.cache
def properties(kind: type[Config]) -> dict[str, Any]:
    # Cached, as pydantic builds it again at every call.
    schema = kind.model_json_schema()
    fields: dict[str, Any] = schema.get("properties", {})
    return fields


def number_types(kind: type[Config], name: str) -> frozenset[str]:
    """Returns which of `integer` and `number` a field takes: none for text, both for a union."""
    schema = properties(kind)[name]
    options = [schema, *schema.get("anyOf", [])]
    return frozenset({"integer", "number"} & {str(option.get("type")) for option in options})


def takes_list(kind: type[Config], name: str) -> bool:
    schema = properties(kind)[name]
    return any(option.get("type") == "array" for option in [schema, *schema.get("anyOf", [])])


# By pydantic's error type: its own words for a mapping name a dictionary or a class of ours.
_MUST = {
    "model_type": "must be a mapping of fields",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "none_required": "must be null",
}


def config_mistakes(
    kind: type[Config], tree: Any, path: TreePath, *, fixed: str | None = None
) -> Iterator[Mistake]:
    """Yields every mistake of the fields of `kind`; `fixed` says why nothing is searched here."""
    if not isinstance(tree, Mapping) or parameter.is_leaf(tree):
        fields = f"a mapping of fields: {', '.join(kind.model_fields) or 'none'}"
        yield Mistake(path, f"must be {fields}", shown(tree))
        return
    yield from name_mistakes(kind, tree, path)
    for name in kind.model_fields:
        if name in tree:
            yield from field_mistakes(kind, name, tree[name], (*path, name), fixed=fixed)
    # What their values must be, the whole recipe is asked.
    for name in tree.keys() - kind.model_fields.keys():
        if parameter.is_leaf(tree[name]):
            yield from parameter.leaf_mistakes(tree[name], (*path, name))


def name_mistakes(kind: type[Config], tree: Mapping[str, Any], path: TreePath) -> Iterator[Mistake]:
    """Yields the fields that `kind` does not have, and those that it must have."""
    known_names = {*kind.model_fields, *kind.more_fields()}
    for name in tree:
        if name not in known_names:
            near = near_miss(name, known_names)
            known = "" if near else "; `tune-speed schema` describes those there are"
            must = f"no field `{name}`{known}"
            yield Mistake((*path, name), must, hint=near)
    for name, field in kind.model_fields.items():
        if field.is_required() and name not in tree:
            text = " ".join(descriptions(kind).get(name, "").split())
            meaning = re.split(r"[.;:] ", text)[0].rstrip(".")
            yield Mistake((*path, name), "must be given", hint=f"{meaning}." if meaning else None)


def field_mistakes(
    kind: type[Config], name: str, value: Any, path: TreePath, *, fixed: str | None = None
) -> Iterator[Mistake]:
    """Yields every mistake of `value` as the field `name` of `kind`, `fixed` as above."""
    field = kind.model_fields[name]
    component, nested, entries = component_of(field), nested_of(field), entries_of(field)
    if parameter.is_leaf(value) and fixed is not None:
        yield Mistake(path, f"must be one value: {fixed}", shown(value))
    elif component is not None and not (
        value is None and not any(_value_mistakes(kind, name, None, path))
    ):
        yield from _component_mistakes(component, value, path, fixed)
    elif parameter.is_leaf(value):
        yield from _leaf_mistakes(kind, name, value, path)
    elif nested is not None and isinstance(value, Mapping):
        yield from config_mistakes(nested, value, path, fixed=fixed)
    elif entries is not None and isinstance(value, Mapping | list):
        placed = value.items() if isinstance(value, Mapping) else enumerate(value)
        inside = [
            mistake
            for key, entry in placed
            for mistake in config_mistakes(entries, entry, (*path, key), fixed=fixed)
        ]
        yield from inside or _value_mistakes(kind, name, value, path)
    else:
        yield from _value_mistakes(kind, name, value, path)


def _component_mistakes(
    component: Component, value: Any, path: TreePath, fixed: str | None
) -> Iterator[Mistake]:
    if parameter.is_leaf(value):
        yield from _choice_of_components_mistakes(component, value, path)
        return
    try:
        name, fields = component.split(value)
    except ValueError as error:
        # Each of several is still checked: that there is one too many must hide no mistake in them.
        known = component.table.keys() & value.keys() if isinstance(value, Mapping) else set()
        own = parameter.own_form(value)
        hint = "To search over several, put them under `choices:`." if len(known) > 1 else own
        yield Mistake(path, str(error), shown(value), hint)
        for name in sorted(known):
            yield from config_mistakes(component.table[name], value[name] or {}, (*path, name))
        return
    nested = (*path, name) if isinstance(value, Mapping) and not component.tag else path
    yield from _entry_mistakes(component, name, fields, nested, fixed)


def _entry_mistakes(
    component: Component, name: Any, fields: Any, path: TreePath, fixed: str | None
) -> Iterator[Mistake]:
    table = component.table
    if isinstance(name, str) and name in table:
        yield from config_mistakes(table[name], fields, path, fixed=fixed)
    else:
        must = f"must be one of {', '.join(table)}"
        yield Mistake(path, must, shown(name), near_miss(name, table), is_unknown=True)


def _choice_of_components_mistakes(
    component: Component, leaf: Mapping[str, Any], path: TreePath
) -> Iterator[Mistake]:
    if "choices" not in leaf:
        yield Mistake(path, f"must be {component.form()}, or `choices` of these", shown(leaf))
        return
    if component.tag is not None:
        yield Mistake(path, "must be one value: this field is not searched", shown(leaf))
        return
    yield from parameter.leaf_mistakes(leaf, path)
    at = (*path, "choices")
    for name, fields in (parameter.branches(leaf) or {}).items():
        yield from _entry_mistakes(component, name, fields, (*at, name), None)
    for position, name in parameter.listed_choices(leaf):
        mistakes = list(_entry_mistakes(component, name, {}, (*at, position), None))
        if mistakes and isinstance(name, str) and name in component.table:
            must = f"must be given with fields: {', '.join(str(m.path[-1]) for m in mistakes)}"
            hint = f"Write the choices as a mapping: `choices: {{{name}: {{…}}}}`."
            mistakes = [Mistake((*at, position), must, shown(name), hint)]
        yield from mistakes


def _leaf_mistakes(
    kind: type[Config], name: str, leaf: Mapping[str, Any], path: TreePath
) -> Iterator[Mistake]:
    yield from parameter.leaf_mistakes(leaf, path)
    if parameter.branches(leaf):
        must = "choices with fields of their own need a field that holds a component"
        yield Mistake(path, must, shown(leaf), "List single values: `choices: [a, b]`.")
    for position, choice in parameter.listed_choices(leaf):
        yield from _value_mistakes(kind, name, choice, (*path, "choices", position))
    if "choices" in leaf:
        return
    numbers = {
        key: leaf[key] for key in ("low", "high", "step") if parameter.is_number(leaf.get(key))
    }
    taken = number_types(kind, name)
    if not taken:
        hint = "List values: `choices: [a, b]`."
        yield Mistake(path, "a range must be given only where a number belongs", shown(leaf), hint)
    elif "number" not in taken and any(isinstance(number, float) for number in numbers.values()):
        yield Mistake(path, "low, high and step must be integers here", shown(leaf))
    else:
        # A field's bounds are for its values: a step may be smaller than the least of them.
        for key in numbers.keys() - {"step"}:
            yield from _value_mistakes(kind, name, numbers[key], (*path, key))


def _value_mistakes(kind: type[Config], name: str, value: Any, path: TreePath) -> Iterator[Mistake]:
    """Yields what the field itself says to `value`; its neighbours have their defaults."""
    try:
        kind.model_validate({name: value})
    except pydantic.ValidationError as error:
        found: dict[TreePath, list[str]] = {}
        known: list[str] = []
        for detail in error.errors(include_url=False):
            # Other errors are those of required neighbours, which are missing here, and of rules
            # between fields, which `validation` checks on whole recipes.
            if detail["loc"][:1] == (name,):
                # Positions only: pydantic's `loc` also names members of unions, which nobody wrote.
                inside = tuple(part for part in detail["loc"][1:] if isinstance(part, int))
                found.setdefault((*path, *inside), []).append(must_text(detail))
                # Of a literal pydantic lists the values: 'a', 'b' or 'c'.
                known += re.findall("'(.+?)'", str(detail.get("ctx", {}).get("expected", "")))
        for at, musts in found.items():
            first, *others = dict.fromkeys(musts)  # Of a union, each member has its own.
            rest = (other.removeprefix("must be ") for other in others)
            must, hint = split_hint(" or ".join([first, *rest]))
            near = near_miss(value, known) or parameter.own_form(value)
            yield Mistake(at, must, shown(value), hint or parameter.unquote(value) or near)


def split_hint(must: str) -> tuple[str, str | None]:
    """Returns `must` without a `; did you mean …?` at its end, and that as a sentence."""
    text, _, near = must.partition("; did you mean ")
    return text, f"Did you mean {near}" if near else None


def must_text(error: ErrorDetails) -> str:
    """Returns what must hold, in our words, for an error of pydantic's."""
    # pydantic puts these words before the message of every ValueError of a validator.
    text = error["msg"].removeprefix("Value error, ").rstrip(".")
    subject, should, rest = text.partition(" should ")
    plain = f"must {rest}" if should and " " not in subject else text
    return _MUST.get(error["type"], plain)
