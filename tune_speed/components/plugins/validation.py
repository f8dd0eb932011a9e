"""The tables that plugins add to, and what an entry of each must be, checked before it goes there.

Its form only: whether a network gives logits or a schedule starts above 0, the contracts of
`tune_speed.testing` say.
"""

import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError
from pydantic.json_schema import PydanticJsonSchemaWarning

from tune_speed.components.metrics import METRICS
from tune_speed.components.metrics.base import Metric
from tune_speed.components.models import MODELS
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.base import OptimizerConfig
from tune_speed.components.plugins.source import Place, PythonFile
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.schedules.base import ScheduleConfig
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.base import Off, Slot, SpeedupConfig
from tune_speed.components.speedups.chosen import Speedups
from tune_speed.core.config import Component, Config, descriptions, did_you_mean
from tune_speed.core.errors import Problem
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig


class PluginTable(NamedTuple):
    """One of our tables."""

    entries: dict[str, Any]
    """What is in it now; every `Component` holds it by reference."""
    base: type
    """What its entries derive from; of metrics, what they are instances of."""
    noun: str
    """An entry, for messages."""

    def taken(self) -> dict[str, Any]:
        """Returns all that a name can mean in YAML; in a slot, `off` means nothing."""
        return {"off": Off, **self.entries} if self.entries is SPEEDUPS else self.entries

    def fits(self, entry: Any) -> bool:
        if self.base is Metric:
            return isinstance(entry, Metric)
        return isinstance(entry, type) and issubclass(entry, self.base)


TABLES: dict[str, PluginTable] = {
    "MODELS": PluginTable(MODELS, ModelConfig, "model"),
    "DATASETS": PluginTable(DATASETS, DatasetConfig, "data set"),
    "OPTIMIZERS": PluginTable(OPTIMIZERS, OptimizerConfig, "optimizer"),
    "SCHEDULES": PluginTable(SCHEDULES, ScheduleConfig, "schedule"),
    "SPEEDUPS": PluginTable(SPEEDUPS, SpeedupConfig, "speed-up"),
    "METRICS": PluginTable(METRICS, Metric, "metric"),
}

Entries = dict[str, dict[str, Any]]
"""Entries by table and name."""
Fields = Mapping[str, Any]


def tables_of(module: ModuleType) -> Entries:
    return {name: vars(module)[name] for name in TABLES if name in vars(module)}


def add(entries: Entries, *, source_hash: str) -> None:
    """Puts entries into our tables; they were checked before."""
    for table, name, kind in _places_of(entries):
        table[name] = kind
    # What one source has decoded is none of another's.
    for kind in entries.get("DATASETS", {}).values():
        kind.plugin_source = source_hash


def remove(entries: Entries) -> None:
    for table, name, _ in _places_of(entries):
        del table[name]


def _places_of(entries: Entries) -> Iterator[tuple[Any, str, Any]]:
    """Yields each entry with each table that holds it: SPEEDUPS, and that of its slot."""
    for table, kinds in entries.items():
        for name, kind in kinds.items():
            yield TABLES[table].entries, name, kind
            marks = Speedups.model_fields[kind.slot].metadata if table == "SPEEDUPS" else []
            yield from ((mark.table, name, kind) for mark in marks if isinstance(mark, Component))


NEEDED: dict[type, tuple[str, ...]] = {
    DatasetConfig: ("num_train", "num_test", "sources", "decode")
}
"""Methods of a base that raise NotImplementedError: the others that are needed are abstract."""
# The one field of our bases that has no default.
NO_FIELDS: Fields = MappingProxyType({"lr": 0.1})
FindPlace = Callable[[str, str | None], Place]


class Mistake(NamedTuple):
    """What a class, or a member of it, must be and is not."""

    must: str
    member: str | None = None
    hint: str | None = None


def problems_of(module: ModuleType, file: str) -> list[Problem]:
    source = PythonFile.of_module(module.__name__)
    if tables := tables_of(module):
        place: FindPlace = lambda table, entry: (file, source.line(table, entry))  # noqa: E731
        return list(entry_problems(tables, place=place))
    must = f"a plugin must have a dict of entries that is called one of {', '.join(TABLES)}"
    nearly = ((name, did_you_mean(name, TABLES)) for name in vars(module) if name.isupper())
    name, near = next((pair for pair in nearly if pair[1]), (None, ""))
    hint = f"D{near.removeprefix('; d')}" if near else None
    line = source.line(name) if name else None
    return [_problem(must, (file, line), given=name, hint=hint)]


def entry_problems(tables: Entries, *, place: FindPlace) -> Iterator[Problem]:
    for table, entries in tables.items():
        if not isinstance(entries, dict) or not entries:
            must = f'{table} must be a dict of entries, such as {table} = {{"my_entry": MyClass}}'
            given = "an empty one" if entries == {} else f"a {type(entries).__name__}"
            yield _problem(must, place(table, None), given=given)
            continue
        known = dict(TABLES[table].taken())
        for name, value in entries.items():
            where = place(table, name if isinstance(name, str) else None)
            yield from _entry_problems(table, name, value, where)
            # What is written to YAML would have the first of a class's names.
            others = [other for other, kind in known.items() if kind is value and other != name]
            if others and isinstance(value, type):
                must = f"the class of `{name}` must have one name only"
                given = f"{value.__name__}, which is `{others[0]}` too"
                yield _problem(must, where, given=given, hint="Derive a class of its own from it.")
            known[name] = value


def _entry_problems(table: str, name: Any, value: Any, place: Place) -> Iterator[Problem]:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        must = f"a name in {table} must be lower-case letters, digits and _, with a letter first"
        yield _problem(must, place, given=repr(name))
        return
    known = TABLES[table].taken().get(name)
    if known is not None and known is not value:
        module, owner = str(getattr(known, "__module__", "")), "tune_speed itself"
        if isinstance(known, type) and not module.startswith("tune_speed."):
            file = PythonFile.of_module(module).path
            owner = f"another plugin, by {known.__qualname__} of {file},"
        given, hint = f"`{name}`, which {owner} has", f"Try `my_{name}`, and write that in YAML."
        yield _problem(f"{table}: a name must be free", place, given=given, hint=hint)
    yield from form_problems(name, value, TABLES[table], place)


def _problem(must: str, place: Place, **rest: Any) -> Problem:
    return Problem(path="", must=must, file=place[0], line=place[1], **rest)


def form_problems(
    name: str, entry: Any, table: PluginTable, place: Place, fields: Fields = NO_FIELDS
) -> Iterator[Problem]:
    """Yields what one entry of a table must be and is not; `fields` are those without a default."""
    if not table.fits(entry):
        form = "a" if table.base is Metric else "a class that derives from"
        base = f"tune_speed.components.{table.base.__name__}"
        must = f"the {table.noun} `{name}` must be {form} {base}"
        given = entry.__qualname__ if isinstance(entry, type) else f"a {type(entry).__name__}"
        yield _problem(must, place, given=given)
    elif isinstance(entry, Metric):
        for must in _metric_mistakes(entry):
            yield _problem(f"the metric `{name}` {must}", place)
    else:
        source = PythonFile.of_module(entry.__module__)
        for must, member, hint in _mistakes(entry, table, fields):
            path = f"{entry.__qualname__}.{member}" if member else entry.__qualname__
            line = source.line(entry.__qualname__, member)
            yield Problem(path=path, must=must, file=source.path, line=line, hint=hint)


def _metric_mistakes(metric: Metric) -> Iterator[str]:
    for field in ("about", "unit", "source"):
        text = getattr(metric, field)
        if not isinstance(text, str) or not text.strip():
            yield f"must have a text as `{field}`"
    for field, arguments in (("of_run", ("RunResult",)), ("of_logits", ("logits", "labels"))):
        try:
            if (function := getattr(metric, field)) is not None:
                inspect.signature(function).bind(*arguments)
        except (TypeError, ValueError):
            yield f"must have None as `{field}`, or a function of ({', '.join(arguments)})"


def _mistakes(kind: type[Config], table: PluginTable, fields: Fields) -> Iterator[Mistake]:
    if not inspect.cleandoc(vars(kind).get("__doc__") or ""):
        hint = f"Write under `class {kind.__name__}` what this {table.noun} is, and its source."
        yield Mistake("must have a docstring, which `tune-speed list` shows", hint=hint)
    for field in [name for name in kind.model_fields if name not in descriptions(kind)]:
        hint = "Write below it what it means, with unit and range."
        yield Mistake("must have a docstring, which `tune-speed schema` shows", field, hint)
    yield from _method_mistakes(kind, table.base)
    slots = get_args(Slot)
    if issubclass(kind, SpeedupConfig) and (slot := getattr(kind, "slot", None)) not in slots:
        near = did_you_mean(str(slot), slots)
        must = f"must have `slot: ClassVar[Slot]`, one of {', '.join(slots)}{near}"
        yield Mistake(must, "slot")
    if issubclass(kind, DatasetConfig):
        for name in sorted(kind.location_fields - kind.model_fields.keys()):
            must = f"must name fields of the class, which `{name}` is not"
            yield Mistake(must, "location_fields")
        if "name" in kind.model_fields:
            yield Mistake("must have another name: `name` is the data set's own in YAML", "name")
    extra = "allow" if "more_fields" in vars(kind) else "forbid"
    for name, value in (("frozen", True), ("strict", True), ("extra", extra)):
        if kind.model_config.get(name) != value:
            must = f"must keep `{name}={value!r}` of its base in `model_config`"
            yield Mistake(must, "model_config")
    # An abstract class cannot be made, whatever its fields.
    if not getattr(kind, "__abstractmethods__", ()):
        yield from _written_mistakes(kind, fields)


def _method_mistakes(kind: type[Config], base: type) -> Iterator[Mistake]:
    needed = {*getattr(base, "__abstractmethods__", ()), *NEEDED.get(base, ())}
    if issubclass(kind, DatasetConfig) and kind.counts is not DatasetConfig.counts:
        needed -= {"num_train", "num_test"}
    own = [each for each in base.__mro__ if each.__module__.startswith("tune_speed.")]
    names = [name for each in reversed(own) if each is not Config for name in vars(each)]
    for name in dict.fromkeys(names):
        # By getattr, a static method would look like a function with `self`.
        ours, theirs = (inspect.getattr_static(each, name) for each in (base, kind))
        if not isinstance(ours, FunctionType) or name.startswith("_"):
            continue
        plain = [
            parameter.replace(annotation=Parameter.empty)
            for parameter in inspect.signature(ours).parameters.values()
        ]
        hint = f"Write `def {name}{inspect.Signature(plain)}: …`."
        if theirs is ours and name in needed:
            yield Mistake(f"must have the method `{name}`", hint=hint)
        elif theirs is not ours and (mistake := signature_mistake(theirs, ours)):
            yield Mistake(mistake, name, hint)


def signature_mistake(theirs: Any, ours: FunctionType) -> str | None:
    """Returns what must hold of `theirs` so that every call of `ours` fits it; None if it does."""
    if not isinstance(theirs, FunctionType):
        return f"must be a method with `self`, not a {type(theirs).__name__}"
    if inspect.iscoroutinefunction(theirs):
        return "must be called without `await`"
    known = inspect.signature(ours).parameters.values()
    # Each argument is its parameter's name; the second call leaves out what has a default.
    for given in (known, [each for each in known if each.default is Parameter.empty]):
        named = {each.name: each.name for each in given if each.kind is Parameter.KEYWORD_ONLY}
        placed = [each.name for each in given if each.name not in named]
        try:
            bound = inspect.signature(theirs).bind(*placed, **named).arguments
        except TypeError as error:
            return f"must take every call of its base: {error}"
        for parameter, name in list(bound.items())[1:]:
            if isinstance(name, str) and parameter != name:
                return f"must take `{name}` where it has `{parameter}`"
    return None


def _written_mistakes(kind: type[Config], fields: Fields) -> Iterator[Mistake]:
    given = {name: value for name, value in fields.items() if name in kind.model_fields}
    try:
        # A default that JSON lacks is a warning only, and is left out of the schema.
        with warnings.catch_warnings():
            warnings.simplefilter("error", PydanticJsonSchemaWarning)
            kind.model_json_schema()
        config = kind.model_validate(given)
        again = kind.model_validate(json.loads(config.model_dump_json()))
        if issubclass(kind, DatasetConfig):
            # Processes cache the data of each data set that they have read.
            hash(config)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] != "missing":
                hint = "Of lists, YAML gives lists: for a tuple, write `Field(strict=False)`."
                must = f"must take its own value as YAML has it: {detail['msg']}"
                member = str(detail["loc"][0]) if detail["loc"] else None
                yield Mistake(must, member, hint if detail["type"] == "tuple_type" else None)
    # A type that JSON lacks, or a validator or serializer of the plugin's.
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"
        hint = "Take numbers, texts, booleans, None, and lists of them."
        yield Mistake(f"must be made, written as JSON and hashed: {why}", hint=hint)
    else:
        if again != config:
            yield Mistake(f"must be read as it was written: {config!r} came back as {again!r}")
