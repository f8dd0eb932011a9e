"""Which plugin brings an entry that a file names and no table has. Nothing of it is run."""

import shlex
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from tune_speed.components.plugins.distributions import offering
from tune_speed.components.plugins.python_file import LONGEST_BYTES
from tune_speed.components.plugins.source import PluginSource

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
