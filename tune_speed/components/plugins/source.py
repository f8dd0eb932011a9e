"""Python files that the user names: read, hashed, run, and places in them for messages."""

import ast
import hashlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tune_speed.core.errors import ConfigError

# A longer file is refused: what is in it is shipped to every worker.
LONGEST_BYTES = 4 * 2**20
Place = tuple[str | None, int | None]
"""File and line."""


def refusal(must: str, **rest: Any) -> ConfigError:
    return ConfigError.of("", must, **rest)


@dataclass(frozen=True)
class PythonFile:
    """The text of a Python file, which is parsed here and not run."""

    path: str
    source: str

    @classmethod
    def of_module(cls, name: str) -> "PythonFile":
        return cls.at(Path(getattr(sys.modules.get(name), "__file__", None) or name))

    @classmethod
    def at(cls, path: Path) -> "PythonFile":
        """Returns a file; an empty text where there is none, or it is too long or no text."""
        try:
            # Opening a named pipe would wait forever.
            is_fit = path.is_file() and path.stat().st_size <= LONGEST_BYTES
            return cls(str(path), path.read_text(encoding="utf-8") if is_fit else "")
        except (OSError, UnicodeDecodeError):
            return cls(str(path), "")

    @property
    def source_hash(self) -> str:
        """First 16 hex digits of SHA-256 over the file's bytes."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]

    @cached_property
    def _lines(self) -> dict[tuple[str, str | None], int]:
        try:
            body = ast.parse(self.source).body
        # A NUL is a ValueError; deep nesting ends in one of the last two.
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            body = []
        lines: dict[tuple[str, str | None], int] = {}
        for name, node in _named(body):
            lines.setdefault((name, None), node.lineno)
            value = getattr(node, "value", None)
            # The key of `**others` is None.
            keys = [key for key in getattr(value, "keys", []) if isinstance(key, ast.Constant)]
            parts = [(str(key.value), key.lineno) for key in keys]
            parts += [(part, each.lineno) for part, each in _named(getattr(node, "body", []))]
            for part, line in parts:
                lines.setdefault((name, part), line)
        return lines

    def line(self, name: str, part: str | None = None) -> int | None:
        """Returns where a class or table is, or a member or key of it, if it is there."""
        return self._lines.get((name, part), self._lines.get((name, None)))

    def has(self, table: str, name: str) -> bool:
        # Parsing takes a hundred times as long as looking for two words.
        return table in self.source and name in self.source and (table, name) in self._lines


def _named(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))


def read_file(name: str, *, must: str) -> PythonFile:
    """Raises: ConfigError if it cannot be read; `must` says what it is to be if there is none."""
    path = Path(name).expanduser().absolute()
    try:
        size, content = path.stat().st_size, path.read_bytes()
    except FileNotFoundError as error:
        near = [each.name for each in sorted(path.parent.glob("*.py"))]
        there = f"In {path.parent} are {', '.join(near[:8])}." if near else None
        raise refusal(must, given=f"{name}, which is not there", hint=there) from error
    # A NUL in a name is a ValueError.
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise refusal("must be a readable Python file", given=f"{name}: {why}") from error
    if size > LONGEST_BYTES:
        longest = f"must be at most {LONGEST_BYTES >> 20} MiB of Python"
        raise refusal(longest, given=f"{size} bytes", file=name)
    try:
        return PythonFile(str(path), content.decode())
    except UnicodeDecodeError as error:
        raise refusal("must be text in UTF-8", given=str(error), file=name) from error


def run_file(file: PythonFile, *, prefix: str, one_file: str) -> ModuleType:
    """Runs a file as a module of a name of its own, with that prefix, once a process; returns it.

    Raises: ConfigError if it fails; `one_file` says what to do about an import of a neighbour.
    """
    stem = re.sub(r"\W", "_", Path(file.path).stem)
    name = f"{prefix}_{stem}_{file.source_hash}"
    # Run again, it would make other classes of the same names, which no field takes.
    if name in sys.modules:
        return sys.modules[name]
    module = importlib.util.module_from_spec(ModuleSpec(name, None, origin=file.path))
    # For tracebacks and `inspect`.
    module.__file__ = file.path
    # Pydantic looks there for names in annotations.
    sys.modules[name] = module
    try:
        # The bytes that were hashed. An importer takes bytecode as current that has the size and
        # time of its file, and a quick edit may leave both as they were.
        exec(compile(file.source.encode(), file.path, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        # The last line of the file that ran; one with a syntax error has no frame.
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file.path]
        if isinstance(error, SyntaxError) and error.filename == file.path:
            lines.append(error.lineno)
        hint = None
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            neighbour = Path(file.path).parent / f"{error.name.partition('.')[0]}.py"
            install = f"Install what brings `{error.name}`, here and on all nodes."
            hint = one_file if neighbour.exists() else install
        given = f"{type(error).__name__}: {error}".rstrip(".")
        line = lines[-1] if lines else None
        must = "must be importable"
        raise refusal(must, given=given, file=file.path, line=line, hint=hint) from error
    return module
