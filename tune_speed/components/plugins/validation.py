"""What an entry of a plugin must be, checked before it goes into a table.

Its form only: whether a network gives logits or a schedule starts above 0, the contracts of
`tune_speed.testing` say.
"""

import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

from tune_speed.components.plugins.plugin_class import class_problems
from tune_speed.components.plugins.plugin_metric import metric_mistakes
from tune_speed.components.plugins.source import Place, PluginSource
from tune_speed.components.plugins.tables import TABLES, Entries, tables_of
from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import Problem

NAME = r"[a-z][a-z0-9_]*"
"""What an entry's name matches."""
FindPlace = Callable[[str, str | None], Place]
"""Returns where a table, or an entry of it, stands."""


def problems_of(module: ModuleType, file: str) -> list[Problem]:
    """Returns all that is wrong with the plugin dicts of a module, by file and line.

    Args:
        module: that was imported.
        file: its source.
    """
    source = PluginSource(Path(file).read_text(encoding="utf-8"), file=file)
    tables = tables_of(module)
    if not tables:
        return [_no_table(module, source)]

    def place(table: str, entry: str | None) -> Place:
        return file, source.table_line(table, entry)

    return list(entry_problems(tables, place=place))


def entry_problems(tables: Entries, *, place: FindPlace) -> Iterator[Problem]:
    """Yields all that is wrong with entries.

    Args:
        tables: what a plugin has for our tables; values that are no dict are a mistake.
        place: where something of a table stands.
    """
    for table, entries in tables.items():
        if not isinstance(entries, dict) or not entries:
            must = f'{table} must be a dict of entries, such as {table} = {{"my_entry": MyClass}}'
            given = "an empty one" if entries == {} else f"a {type(entries).__name__}"
            yield _problem(must, place(table, None), given=given)
            continue
        for name, value in entries.items():
            where = place(table, name if isinstance(name, str) else None)
            yield from _entry_problems(table, name, value, where)
            yield from _twice(table, name, value, entries, where)


def _entry_problems(table: str, name: Any, value: Any, place: Place) -> Iterator[Problem]:
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        must = f"a name in {table} must be lower-case letters, digits and _, with a letter first"
        yield _problem(must, place, given=repr(name))
        return
    known = TABLES[table].taken().get(name)
    if known is not None and known is not value:
        must = f"{table}: a name must be free"
        given = f"`{name}`, which {_owner(known)} has"
        yield _problem(must, place, given=given, hint=f"Try `my_{name}`, and write that in YAML.")
    if table != "METRICS":
        yield from class_problems(name, value, TABLES[table], place)
        return
    for mistake in metric_mistakes(value):
        yield _problem(f"the metric `{name}` {mistake}", place)


def _twice(
    table: str, name: Any, value: Any, entries: dict[Any, Any], place: Place
) -> Iterator[Problem]:
    """Yields that a class has two names: what is written to YAML would have the first."""
    before = [*takewhile(lambda entry: entry[0] != name, entries.items())]
    known = [*TABLES[table].taken().items(), *before]
    others = [other for other, kind in known if kind is value and other != name]
    if others and isinstance(value, type):
        must = f"the class of `{name}` must have one name only"
        given = f"{value.__name__}, which is `{others[0]}` too"
        yield _problem(must, place, given=given, hint="Derive a class of its own from it.")


def _owner(known: Any) -> str:
    module = str(getattr(known, "__module__", ""))
    if isinstance(known, type) and not module.startswith("tune_speed."):
        return f"another plugin, by {known.__qualname__} of {PluginSource.of_module(module).file},"
    return "tune_speed itself"


def _no_table(module: ModuleType, source: PluginSource) -> Problem:
    must = f"a plugin must have a dict of entries that is called one of {', '.join(TABLES)}"
    for name in vars(module):
        if name.isupper() and (near := did_you_mean(name, TABLES)):
            hint = f"D{near.removeprefix('; d')}"
            return _problem(must, (source.file, source.table_line(name)), given=name, hint=hint)
    return _problem(must, (source.file, None))


def _problem(
    must: str, place: Place, *, given: str | None = None, hint: str | None = None
) -> Problem:
    return Problem(path="", must=must, given=given, hint=hint, file=place[0], line=place[1])
