"""A plugin that is a file: found, hashed, and run from the bytes that were hashed."""

import sys
from pathlib import Path

from tune_speed.components.plugins.plugin import Opened, Plugin
from tune_speed.components.plugins.python_file import PythonFile, read_file, run_file
from tune_speed.components.plugins.tables import Entries, tables_of
from tune_speed.components.plugins.validation import problems_of
from tune_speed.core.errors import ConfigError

_ONE_FILE = (
    "A plugin is one file, as workers get it: put both into one, or make them a distribution with"
    " entry points."
)


def open_file(name: str) -> Opened:
    """Returns a plugin file, read and not run. Raises: ConfigError if it cannot be read."""
    must = "must be a Python file, or without `.py` an installed distribution"
    file = read_file(name, must=must)
    plugin = Plugin(
        name=name,
        title=Path(file.path).name,
        source_hash=file.source_hash,
        file=file.path,
        source=file.source,
    )
    return Opened(plugin, lambda: _run(file))


def _run(file: PythonFile) -> Entries:
    module = run_file(file, prefix="tune_speed_plugin", one_file=_ONE_FILE)
    problems = problems_of(module, file.path)
    if problems:
        del sys.modules[module.__name__]
        raise ConfigError(problems=tuple(problems))
    return tables_of(module)
