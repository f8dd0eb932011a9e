"""The base of all configurations, frozen and strict, and fields that hold an entry of a table."""

import ast
import difflib
import hashlib
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tune_speed.core.renamed import PRESENT


class Config(BaseModel):
    """A frozen set of named, typed and described values."""

    # JSON has neither NaN nor infinity, and configurations are hashed and stored as JSON.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    untimed_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that cannot change how long an optimizer step takes; all others are taken to."""
    switch_fields: ClassVar[frozenset[str]] = frozenset()
    """Numbers that change it by whether they are 0 or null alone."""

    @classmethod
    def more_fields(cls) -> Iterable[str]:
        """Returns names of fields that a tree may have beyond those of the class."""
        return ()

    def speed_fields(self) -> dict[str, Any]:
        """Returns what of it can change how long an optimizer step takes, as JSON has it."""
        fields = self.model_dump(mode="json", exclude=set(self.untimed_fields))
        return {n: (v and True) if n in self.switch_fields else v for n, v in fields.items()}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        found = handler.resolve_ref_schema(handler(schema))
        for name, text in descriptions(cls).items():
            found["properties"][name].setdefault("description", text)
        return found


def left_out(default: Any, **bounds: Any) -> Any:
    """Returns a field that a dump leaves out at its default, so that hashes of old ones stay."""
    return Field(default=default, exclude_if=lambda value: value == default, **bounds)


Table = Mapping[str, type[Config]]
# Characters of a name for which a similar one is looked for.
LONGEST_NAME = 200


class Component:
    """Marks a field that holds one entry of `table`: `{sgd: {lr: 0.1}}`, or `sgd` for its defaults.

    With `tag`, the name is among the fields: `{name: cifar10, root: data}`. Dumping gives the form
    read.
    """

    def __init__(self, table: Table, *, tag: str | None = None) -> None:
        self.table = table
        self.tag = tag

    def split(self, value: Any) -> tuple[str, Mapping[str, Any]]:
        """Returns the entry's name and fields. Raises: ValueError if `value` has no such form."""
        if isinstance(value, str):
            return value, {}
        if self.tag and isinstance(value, Mapping) and isinstance(value.get(self.tag), str):
            return value[self.tag], {k: v for k, v in value.items() if k != self.tag}
        if not self.tag and isinstance(value, Mapping) and len(value) == 1:
            name, fields = next(iter(value.items()))
            if fields is None or isinstance(fields, Mapping):
                return str(name), fields or {}
        raise ValueError(f"must be {self.form()}")

    def form(self) -> str:
        example = next(iter(self.table))
        written = f"{{{self.tag}: {example}, …}}" if self.tag else f"{{{example}: {{…}}}}"
        return f"one of {', '.join(self.table)}, written as a name or as {written}"

    def join(self, config: Config) -> dict[str, Any]:
        """Returns `config` in the form that `split` reads, with every field."""
        fields = config.model_dump(mode="json")
        name = next(name for name, kind in self.table.items() if type(config) is kind)
        return {self.tag: name, **fields} if self.tag else {name: fields}

    def _validate(self, value: Any) -> Config:
        if isinstance(value, Config) and type(value) in self.table.values():
            return value
        try:
            name, fields = self.split(value)
        except ValueError as error:
            # Pydantic begins a ValueError's text with "Value error, ". The text is an argument:
            # braces of a template would be fields, and this text has some.
            raise PydanticCustomError("component", "{text}", {"text": str(error)}) from None
        if name not in self.table:
            text = f"must be one of {', '.join(self.table)}{did_you_mean(name, self.table)}"
            raise PydanticCustomError("component", "{text}", {"text": text})
        return self.table[name].model_validate(dict(fields))

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        serializer = core_schema.plain_serializer_function_ser_schema(self.join)
        return core_schema.no_info_plain_validator_function(
            self._validate, serialization=serializer
        )

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, __: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        # Study files have a schema of their own (`study.schema`); plugins only need that there
        # is one.
        return {"description": self.form()}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean …?` with the nearest of `known`, or a former name's; or nothing."""
    if PRESENT.get(name) in (known := list(known)):
        return f"; did you mean `{PRESENT[name]}`, as it is called now?"
    # Comparing takes the product of both lengths.
    if len(name) > LONGEST_NAME:
        return ""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean `{near[0]}`?" if near else ""


def canonical_hash(value: Any) -> str:
    """Returns the first 16 hex digits of SHA-256 over `value` as JSON with sorted keys."""
    # 16 digits are 64 bits: of a million values, two share a hash with a chance of 3e-8.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns `{"a.b": value}` for a tree of mappings; empty mappings stay as `{}` leaves."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        nested = isinstance(value, Mapping) and value
        flat.update(flatten(value, f"{path}.") if nested else {path: value})
    return flat


# Pydantic could read them whenever a class is made (`use_attribute_docstrings`). That is a third of
# the time that importing the package takes, in every command and every trial process.
@cache
def descriptions(kind: type[BaseModel]) -> dict[str, str]:
    """Returns what fields mean, by name, inherited ones too; those without a text are left out."""
    bases = [base for base in reversed(kind.__mro__) if issubclass(base, BaseModel)]
    found = {name: text for base in bases[1:] for name, text in _own(base)}
    texts = {
        name: field.description or found.get(name) for name, field in kind.model_fields.items()
    }
    return {name: text for name, text in texts.items() if text}


def _own(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yields the fields that a class itself declares, with the string below each."""
    declared = _declared(kind.__module__).get(kind.__qualname__)
    for field, below in pairwise(declared.body if declared else []):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, inspect.cleandoc(str(below.value.value))


@cache
def _declared(module: str) -> dict[str, ast.ClassDef]:
    """Returns the classes of a module, by qualified name; none without a file (a notebook)."""
    # `inspect.getsource` of a class would parse the whole file again for each.
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        return {}
    return dict(_classes(ast.parse(source), prefix=""))


def _classes(node: ast.AST, *, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}{child.name}", child
            inner = f"{prefix}{child.name}."
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{prefix}{child.name}.<locals>."
        yield from _classes(child, prefix=inner)
