"""A plugin that is an installed distribution: its entry points in our groups."""

import hashlib
import importlib.util
import shlex
import traceback
from collections.abc import Iterable, Iterator
from importlib import metadata
from itertools import islice
from pathlib import Path

from tune_speed.components.plugins.plugin import Opened, Plugin, refusal
from tune_speed.components.plugins.python_file import LONGEST_BYTES
from tune_speed.components.plugins.source import Place, PluginSource, source_of
from tune_speed.components.plugins.tables import TABLES, Entries
from tune_speed.components.plugins.validation import entry_problems
from tune_speed.core.config import canonical_hash, did_you_mean
from tune_speed.core.errors import ConfigError, Problem

_TABLE_OF = {table.group: name for name, table in TABLES.items()}


def open_distribution(name: str) -> Opened:
    """Returns an installed distribution; none of its code has run.

    Raises: ConfigError if there is none of that name, or it has no entry points of ours.
    """
    try:
        found = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError) as error:
        raise _not_installed(name) from error
    points = [point for point in found.entry_points if point.group in _TABLE_OF]
    if not points:
        must = f"must have entry points in one of the groups {', '.join(_TABLE_OF)}"
        raise refusal(must, given=f"the distribution {name} without any")
    title = found.metadata["Name"] or name
    files = {point.module: _digest(point.module) for point in points}
    plugin = Plugin(
        name=name,
        title=title,
        source_hash=canonical_hash([title, found.version, files]),
        version=found.version,
    )
    return Opened(plugin, lambda: _run(points, name))


def offering() -> dict[tuple[str, str], str]:
    """Returns the installed distributions that have an entry, by table and the entry's name."""
    return {
        (table, point.name): point.dist.name
        for group, table in _TABLE_OF.items()
        for point in metadata.entry_points(group=group)
        if point.dist is not None
    }


def _not_installed(name: str) -> ConfigError:
    installed = sorted(set(offering().values()))
    known = [f"{name}.py"] if Path(f"{name}.py").exists() else installed
    near = did_you_mean(name, known).removeprefix("; d")
    others = f"Plugins are installed as {', '.join(installed)}." if installed else None
    return refusal(
        "must be an installed distribution, or a file that ends in `.py`",
        given=f"`{name}`, which is neither",
        hint=f"D{near}" if near else others,
    )


def _digest(module: str) -> str:
    """Returns SHA-256 of a module's file; empty where it has none. Runs its parents' code."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # A package that fails does so again, with its place, once it is loaded.
        return ""
    origin = spec.origin if spec is not None else None
    is_file = origin is not None and Path(origin).is_file()
    return hashlib.sha256(Path(str(origin)).read_bytes()).hexdigest() if is_file else ""


def _run(points: list[metadata.EntryPoint], name: str) -> Entries:
    """Returns what the entry points name, checked. Raises: ConfigError with every mistake."""
    entries: Entries = {}
    problems: list[Problem] = []
    for point in points:
        table = _TABLE_OF[point.group]
        try:
            entries.setdefault(table, {})[point.name] = point.load()
        except (Exception, SystemExit) as error:
            problems.append(_load_problem(error, point, name))
    found = entry_problems(entries, place=lambda table, entry: _place(entries, table, entry, name))
    problems += found
    if problems:
        raise ConfigError(problems=tuple(problems))
    return entries


def _load_problem(error: BaseException, point: metadata.EntryPoint, name: str) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_of(frame.filename, point)]
    return Problem(
        path="",
        must=f"its entry point {point.name} ({point.value}) must be importable",
        given=f"{type(error).__name__}: {error}".rstrip("."),
        file=own[-1].filename if own else name,
        line=own[-1].lineno if own else None,
    )


def _is_of(file: str, point: metadata.EntryPoint) -> bool:
    """Returns whether a file is of the package, or the module, that an entry point names."""
    package = point.module.partition(".")[0]
    return package in Path(file).with_suffix("").parts


def _place(entries: Entries, table: str, entry: str | None, name: str) -> Place:
    """Returns where an entry's class stands; the distribution's name where that is unknown."""
    value = entries.get(table, {}).get(entry or "")
    if not isinstance(value, type):
        return name, None
    source = source_of(value)
    return source.file, source.class_line(value)


MOST_FILES = 200
"""Python files of a folder that are looked at."""


def missing_plugin(table: str, name: str, *, folders: Iterable[Path]) -> str | None:
    """Returns which `--plugin` would bring an entry, as a sentence; None if none is known to.

    Args:
        table: such as `MODELS`.
        name: of the entry.
        folders: whose Python files are read.
    """
    for file in _files(folders):
        if _has(file, table, name):
            return f"It is in {file}: add `--plugin {shlex.quote(str(file))}`."
    distribution = offering().get((table, name))
    if distribution is None:
        return None
    return f"The installed {distribution} has it: add `--plugin {shlex.quote(distribution)}`."


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    """Yields the Python files of each folder, as short as the working directory lets them be."""
    here = Path.cwd()
    for folder in dict.fromkeys(path.absolute() for path in folders):
        for path in sorted(islice(folder.glob("*.py"), MOST_FILES)):
            yield path.relative_to(here) if path.is_relative_to(here) else path


def _has(file: Path, table: str, name: str) -> bool:
    try:
        if not file.is_file() or file.stat().st_size > LONGEST_BYTES:
            return False
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    # Parsing takes a hundred times as long as looking for two words.
    if table not in text or name not in text:
        return False
    return name in PluginSource(text, file=str(file)).keys(table)
