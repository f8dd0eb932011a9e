"""A plugin that is a file: found, hashed, and run from the bytes that were hashed."""

import hashlib
import importlib.abc
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from tune_speed.errors import ConfigError
from tune_speed.plugin import Opened, Plugin, refusal
from tune_speed.plugin_check import problems_of
from tune_speed.plugin_tables import Entries, tables_of

LONGEST_BYTES = 4 * 2**20
"""A longer file is refused: it is shipped to every worker with each trial."""


def open_file(name: str) -> Opened:
    """Returns a plugin file, read and not run. Raises: ConfigError if it cannot be read."""
    path = Path(name).expanduser().absolute()
    source = _read(path, name)
    plugin = Plugin(
        name=name,
        title=path.name,
        source_hash=hashlib.sha256(source.encode()).hexdigest()[:16],
        file=str(path),
        source=source,
    )
    return Opened(plugin, lambda: _run(plugin))


def _read(path: Path, name: str) -> str:
    try:
        size, content = path.stat().st_size, path.read_bytes()
    except FileNotFoundError as error:
        near = [each.name for each in sorted(path.parent.glob("*.py"))]
        there = f"In {path.parent} are {', '.join(near[:8])}." if near else None
        must = "must be a Python file, or without `.py` an installed distribution"
        raise refusal(must, given=f"{name}, which is not there", hint=there) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise refusal("must be a readable Python file", given=f"{name}: {why}") from error
    if size > LONGEST_BYTES:
        must = f"must be at most {LONGEST_BYTES >> 20} MiB of Python"
        raise refusal(must, given=f"{size} bytes", file=name)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise refusal("must be text in UTF-8", given=str(error), file=name) from error


def _run(plugin: Plugin) -> Entries:
    assert plugin.file is not None
    module = _import(plugin)
    problems = problems_of(module, plugin.file)
    if problems:
        del sys.modules[module.__name__]
        raise ConfigError(problems=tuple(problems))
    return tables_of(module)


def _import(plugin: Plugin) -> ModuleType:
    """Runs the file as a module of a name of its own. Raises: ConfigError if it fails."""
    assert plugin.file is not None and plugin.source is not None
    stem = re.sub(r"\W", "_", Path(plugin.file).stem)
    name = f"tune_speed_plugin_{stem}_{plugin.source_hash}"
    if name in sys.modules:  # Unloaded before: its classes are the same.
        return sys.modules[name]
    loader = _Source(plugin.file, plugin.source.encode())
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Pydantic looks there for names in annotations.
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_error(error, plugin.file) from error
    return module


class _Source(importlib.abc.SourceLoader):
    """Runs the bytes that were hashed: no bytecode of an older file, no newer file."""

    def __init__(self, file: str, source: bytes) -> None:
        self._file, self._source = file, source

    def get_filename(self, fullname: str) -> str:
        """Returns where the source was read, for tracebacks and `inspect`."""
        return self._file

    def get_data(self, path: str | bytes) -> bytes:
        """Returns the source; there is no bytecode."""
        if str(path) != self._file:
            raise OSError(path)
        return self._source


def _import_error(error: BaseException, file: str) -> ConfigError:
    """Returns the error of a file that does not run, at the last line of it that did."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno)
    given = f"{type(error).__name__}: {error}".rstrip(".")
    return refusal(
        "must be importable",
        given=given,
        file=file,
        line=lines[-1] if lines else None,
        hint=_import_hint(error, file),
    )


def _import_hint(error: BaseException, file: str) -> str | None:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None:
        return None
    if (Path(file).parent / f"{missing.partition('.')[0]}.py").exists():
        return (
            "A plugin is one file, as workers get it: put both into one, or make them a"
            " distribution with entry points."
        )
    return f"Install what brings `{missing}`, here and on all nodes."
