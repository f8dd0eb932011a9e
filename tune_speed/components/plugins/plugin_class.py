"""What the class of a plugin's entry must be: base, methods, docstrings, and a form in YAML."""

import inspect
import json
import warnings
from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning

from tune_speed.components.plugins.plugin_signature import signature_mistake, written
from tune_speed.components.plugins.source import Place, own_docstring, source_of
from tune_speed.components.plugins.tables import PluginTable
from tune_speed.components.speedups.base import Slot, SpeedupConfig
from tune_speed.core.config import Config, did_you_mean
from tune_speed.core.descriptions import descriptions
from tune_speed.core.errors import Problem
from tune_speed.data.base import DatasetConfig

NEEDED: dict[type, tuple[str, ...]] = {
    DatasetConfig: ("num_train", "num_test", "sources", "decode")
}
"""Methods of a base that raise NotImplementedError: the others that are needed are abstract."""
SAMPLES = {"lr": 0.1}
"""Values of fields of our bases that have no default."""


class Mistake(NamedTuple):
    """What a class, or a member of it, must be and is not."""

    must: str
    member: str | None = None
    hint: str | None = None


def class_problems(name: str, kind: Any, table: PluginTable, place: Place) -> Iterator[Problem]:
    """Yields what is wrong with the class of an entry.

    Args:
        name: of the entry.
        kind: what the table has under it.
        table: ours, that it goes into.
        place: file and line of the entry, for classes that are none.
    """
    base = f"tune_speed.components.{table.base.__name__}"
    is_ours = isinstance(kind, type) and issubclass(kind, table.base)
    if not is_ours or not issubclass(kind, Config):
        given = kind.__qualname__ if isinstance(kind, type) else f"a {type(kind).__name__}"
        must = f"the {table.noun} `{name}` must be a class that derives from {base}"
        yield Problem(path="", must=must, given=given, file=place[0], line=place[1])
        return
    source = source_of(kind)
    for must, member, hint in _mistakes(kind, table):
        line = source.member_line(kind, member) if member else source.class_line(kind)
        path = f"{kind.__qualname__}.{member}" if member else kind.__qualname__
        yield Problem(path=path, must=must, file=source.file, line=line, hint=hint)


def _mistakes(kind: type[Config], table: PluginTable) -> Iterator[Mistake]:
    yield from _docstring_mistakes(kind, table.noun)
    yield from _method_mistakes(kind, table.base)
    yield from _class_variable_mistakes(kind)
    if not getattr(kind, "__abstractmethods__", ()):
        yield from _form_mistakes(kind)


def _docstring_mistakes(kind: type[Config], noun: str) -> Iterator[Mistake]:
    if not own_docstring(kind):
        hint = f"Write under `class {kind.__name__}` in a line what this {noun} is, and its source."
        yield Mistake("must have a docstring, which `tune-speed list` shows", hint=hint)
    described = descriptions(kind)
    for field in kind.model_fields:
        if field not in described:
            hint = "Write below it what it means, with unit and range."
            yield Mistake("must have a docstring, which `tune-speed schema` shows", field, hint)


def _method_mistakes(kind: type[Config], base: type) -> Iterator[Mistake]:
    """Yields methods that are missing, or that cannot be called as the base's are."""
    needed = {*getattr(base, "__abstractmethods__", ()), *NEEDED.get(base, ())}
    for name, ours in _methods(base).items():
        theirs = inspect.getattr_static(kind, name)
        if theirs is ours and name in needed:
            hint = f"Write `def {name}{written(ours)}: …`."
            yield Mistake(f"must have the method `{name}`", hint=hint)
        elif theirs is not ours and (mistake := signature_mistake(theirs, ours)):
            hint = f"Write `def {name}{written(ours)}: …`."
            yield Mistake(mistake, name, hint)


def _methods(base: type) -> dict[str, FunctionType]:
    """Returns the public methods that our classes give a base, beyond every configuration's."""
    own = [kind for kind in reversed(base.__mro__) if kind.__module__.startswith("tune_speed.")]
    return {
        name: member
        for kind in own
        if kind is not Config
        for name, member in vars(kind).items()
        if isinstance(member, FunctionType) and not name.startswith("_")
    }


def _class_variable_mistakes(kind: type[Config]) -> Iterator[Mistake]:
    if issubclass(kind, SpeedupConfig):
        slot, slots = getattr(kind, "slot", None), get_args(Slot)
        if slot not in slots:
            near = did_you_mean(slot, slots) if isinstance(slot, str) else ""
            must = f"must have `slot: ClassVar[Slot]`, one of {', '.join(slots)}{near}"
            yield Mistake(must, "slot")
    if issubclass(kind, DatasetConfig):
        for name in sorted(set(kind.location_fields) - set(kind.model_fields)):
            yield Mistake(
                f"must name fields of the class, which `{name}` is not", "location_fields"
            )
        if "name" in kind.model_fields:
            yield Mistake("must have another name: `name` is the data set's own in YAML", "name")


def _form_mistakes(kind: type[Config]) -> Iterator[Mistake]:
    """Yields why a configuration cannot be frozen, described by a schema, or read from JSON."""
    for name in ("frozen", "strict"):
        if not kind.model_config.get(name):
            yield Mistake(f"must keep `{name}=True` of its base in `model_config`", "model_config")
    if kind.model_config.get("extra") != "forbid":
        yield Mistake('must keep `extra="forbid"` of its base in `model_config`', "model_config")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", PydanticJsonSchemaWarning)
            kind.model_json_schema()
    except (PydanticUserError, PydanticJsonSchemaWarning) as error:
        hint = "Take numbers, texts, booleans, None, and lists of them."
        yield Mistake(f"must have fields that JSON has: {_line(error)}", hint=hint)
        return
    yield from _default_mistakes(kind)


def _default_mistakes(kind: type[Config]) -> Iterator[Mistake]:
    """Yields why the defaults are refused, or are not read as they were written."""
    given = {name: value for name, value in SAMPLES.items() if name in kind.model_fields}
    try:
        config = kind.model_validate(given)
        again = kind.model_validate(json.loads(config.model_dump_json()))
        if issubclass(kind, DatasetConfig):
            hash(config)  # Processes keep the data of each data set that they have read.
    except ValidationError as error:
        details = [each for each in error.errors(include_url=False) if each["type"] != "missing"]
        for detail in details:
            member = str(detail["loc"][0]) if detail["loc"] else None
            hint = "Of lists, YAML gives lists: for a tuple, write `Field(strict=False)`."
            is_tuple = detail["type"] == "tuple_type"
            must = f"must take its own default as YAML has it: {detail['msg']}"
            yield Mistake(must, member, hint if is_tuple else None)
    except Exception as error:  # A validator or serializer of the plugin's.
        yield Mistake(f"must be made, written and hashed with its defaults: {_line(error)}")
    else:
        if again != config:
            yield Mistake("must be read from JSON as it was written, with its defaults")


def _line(error: BaseException) -> str:
    """Returns an error's kind and first line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
