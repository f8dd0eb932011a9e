"""Installed distributions that are plugins: their entry points in our groups."""

import hashlib
import importlib.util
import shlex
import traceback
from collections.abc import Iterable
from importlib import metadata
from itertools import islice
from pathlib import Path

from tune_speed.components.plugins.source import Place, PythonFile, refusal
from tune_speed.components.plugins.validation import TABLES, Entries, entry_problems
from tune_speed.core.config import canonical_hash, did_you_mean
from tune_speed.core.errors import ConfigError, Problem

MOST_FILES = 200
_TABLE_OF = {f"tune_speed.{name.lower()}": name for name in TABLES}


class PluginDistribution:
    """An installed distribution with entry points of ours; none of its code has run."""

    def __init__(self, name: str) -> None:
        """Raises: ConfigError if there is none of that name, or it has no such entry points."""
        try:
            found = metadata.distribution(name)
        except (metadata.PackageNotFoundError, ValueError) as error:
            points = [point for group in _TABLE_OF for point in metadata.entry_points(group=group)]
            installed = sorted({point.dist.name for point in points if point.dist is not None})
            known = [f"{name}.py"] if Path(f"{name}.py").exists() else installed
            near = did_you_mean(name, known).removeprefix("; d")
            others = f"Plugins are installed as {', '.join(installed)}." if installed else None
            must = "must be an installed distribution, or a file that ends in `.py`"
            hint = f"D{near}" if near else others
            raise refusal(must, given=f"`{name}`, which is neither", hint=hint) from error
        self.name, self.title, self.version = name, found.metadata["Name"] or name, found.version
        self._points = [point for point in found.entry_points if point.group in _TABLE_OF]
        if not self._points:
            must = f"must have entry points in one of the groups {', '.join(_TABLE_OF)}"
            raise refusal(must, given=f"the distribution {name} without any")

    def source_hash(self) -> str:
        # To find a module in a package, importlib runs the package's code.
        files = {point.module: _digest(point.module) for point in self._points}
        return canonical_hash([self.title, self.version, files])

    def run(self) -> Entries:
        """Raises: ConfigError with every mistake."""
        entries: Entries = {}
        problems: list[Problem] = []
        for point in self._points:
            try:
                entries.setdefault(_TABLE_OF[point.group], {})[point.name] = point.load()
            # A module may call sys.exit while it is imported.
            except (Exception, SystemExit) as error:
                package = point.module.partition(".")[0]
                frames = traceback.extract_tb(error.__traceback__)
                own = [f for f in frames if package in Path(f.filename).with_suffix("").parts]
                problem = Problem(
                    path="",
                    must=f"its entry point {point.name} ({point.value}) must be importable",
                    given=f"{type(error).__name__}: {error}".rstrip("."),
                    file=own[-1].filename if own else self.name,
                    line=own[-1].lineno if own else None,
                )
                problems.append(problem)

        def place(table: str, entry: str | None) -> Place:
            value = entries.get(table, {}).get(entry or "")
            if not isinstance(value, type):
                return self.name, None
            source = PythonFile.of_module(value.__module__)
            return source.path, source.line(value.__qualname__)

        problems += entry_problems(entries, place=place)
        if problems:
            raise ConfigError(problems=tuple(problems))
        return entries


def missing_plugin(table: str, name: str, *, folders: Iterable[Path]) -> str | None:
    """Returns which `--plugin` would bring an entry of `MODELS`, say; None if none is known to."""
    here = Path.cwd()
    for folder in dict.fromkeys(path.absolute() for path in folders):
        for file in sorted(islice(folder.glob("*.py"), MOST_FILES)):
            if PythonFile.at(file).has(table, name):
                shown = file.relative_to(here) if file.is_relative_to(here) else file
                return f"It is in {shown}: add `--plugin {shlex.quote(str(shown))}`."
    found = metadata.entry_points(group=f"tune_speed.{table.lower()}", name=name)
    distribution = next((point.dist.name for point in found if point.dist is not None), None)
    if distribution is None:
        return None
    return f"The installed {distribution} has it: add `--plugin {shlex.quote(distribution)}`."


def _digest(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    # A package that fails does so again, with its place, when it is loaded.
    except Exception:
        return ""
    origin = spec.origin if spec is not None else None
    is_file = origin is not None and Path(origin).is_file()
    return hashlib.sha256(Path(str(origin)).read_bytes()).hexdigest() if is_file else ""
