"""A Python file that the user names: read, hashed, and run from the bytes that were hashed."""

import hashlib
import importlib.abc
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from tune_speed.components.plugins.plugin import refusal
from tune_speed.core.errors import ConfigError

LONGEST_BYTES = 4 * 2**20
"""A longer file is refused: what is in it is shipped to every worker."""


class PythonFile(NamedTuple):
    """A file that was read and not run."""

    path: str
    """Absolute."""
    source: str
    """Its text."""
    source_hash: str
    """First 16 hex digits of SHA-256 over its bytes."""


def read_file(name: str, *, must: str) -> PythonFile:
    """Returns a file; nothing of it is run.

    Args:
        name: as the user wrote it.
        must: what it must be, for the message if there is no such file.

    Raises: ConfigError if it cannot be read.
    """
    path = Path(name).expanduser().absolute()
    source = _read(path, name, must)
    return PythonFile(str(path), source, hashlib.sha256(source.encode()).hexdigest()[:16])


def run_file(file: PythonFile, *, prefix: str, one_file: str) -> ModuleType:
    """Runs a file as a module of a name of its own, once a process; returns the module.

    Args:
        file: what `read_file` returned.
        prefix: what the module's name begins with.
        one_file: what to do about an import of a neighbouring file, as a sentence.

    Raises: ConfigError if it fails.
    """
    stem = re.sub(r"\W", "_", Path(file.path).stem)
    name = f"{prefix}_{stem}_{file.source_hash}"
    if name in sys.modules:  # Run before: its classes are the same.
        return sys.modules[name]
    loader = _Source(file.path, file.source.encode())
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Pydantic looks there for names in annotations.
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_error(error, file.path, one_file) from error
    return module


def _read(path: Path, name: str, must: str) -> str:
    try:
        size, content = path.stat().st_size, path.read_bytes()
    except FileNotFoundError as error:
        near = [each.name for each in sorted(path.parent.glob("*.py"))]
        there = f"In {path.parent} are {', '.join(near[:8])}." if near else None
        raise refusal(must, given=f"{name}, which is not there", hint=there) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise refusal("must be a readable Python file", given=f"{name}: {why}") from error
    if size > LONGEST_BYTES:
        longest = f"must be at most {LONGEST_BYTES >> 20} MiB of Python"
        raise refusal(longest, given=f"{size} bytes", file=name)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise refusal("must be text in UTF-8", given=str(error), file=name) from error


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


def _import_error(error: BaseException, file: str, one_file: str) -> ConfigError:
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
        hint=_import_hint(error, file, one_file),
    )


def _import_hint(error: BaseException, file: str, one_file: str) -> str | None:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is None:
        return None
    if (Path(file).parent / f"{missing.partition('.')[0]}.py").exists():
        return one_file
    return f"Install what brings `{missing}`, here and on all nodes."
