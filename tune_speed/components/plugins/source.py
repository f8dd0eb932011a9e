"""Where in a plugin's source something stands, for messages; found without running it."""

import ast
import inspect
import sys
from functools import cached_property
from pathlib import Path

Place = tuple[str | None, int | None]
"""File and line."""


class PluginSource:
    """The text of one module."""

    def __init__(self, text: str, *, file: str) -> None:
        self.file = file
        self._text = text

    @classmethod
    def of_module(cls, name: str) -> "PluginSource":
        """Returns the source of an imported module; an empty one where it has no file."""
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None) or name
        try:
            return cls(Path(file).read_text(encoding="utf-8"), file=file)
        except (OSError, UnicodeDecodeError):
            return cls("", file=file)

    def table_line(self, table: str, entry: str | None = None) -> int | None:
        """Returns the line of a table, or of an entry of it where it is written as a dict."""
        found = next((node for name, node in self._assigned if name == table), None)
        if found is None:
            return None
        if entry is None:
            return found.lineno
        keys = found.value.keys if isinstance(found.value, ast.Dict) else []
        lines = (key.lineno for key in keys if key is not None and _text_of(key) == entry)
        return next(lines, found.lineno)

    def class_line(self, kind: type) -> int | None:
        """Returns the line of a class."""
        node = self._classes.get(kind.__qualname__)
        return None if node is None else node.lineno

    def member_line(self, kind: type, name: str) -> int | None:
        """Returns the line of a method or field of a class; the class's own without it."""
        node = self._classes.get(kind.__qualname__)
        members = (part for part in (node.body if node else []) if _name_of(part) == name)
        return next((part.lineno for part in members), self.class_line(kind))

    def keys(self, table: str) -> list[str]:
        """Returns the entries that a table has where it is written as a dict."""
        dicts = [node.value for name, node in self._assigned if name == table]
        keys = [key for value in dicts if isinstance(value, ast.Dict) for key in value.keys]
        return [text for key in keys if key is not None and (text := _text_of(key)) is not None]

    @cached_property
    def _tree(self) -> ast.Module:
        try:
            return ast.parse(self._text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module(body=[], type_ignores=[])

    @cached_property
    def _assigned(self) -> list[tuple[str, ast.Assign | ast.AnnAssign]]:
        """What the module assigns to names, in order."""
        found: list[tuple[str, ast.Assign | ast.AnnAssign]] = []
        for node in self._tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found += [(target.id, node) for target in targets if isinstance(target, ast.Name)]
        return found

    @cached_property
    def _classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self._tree.body if isinstance(node, ast.ClassDef)}


def source_of(kind: type) -> PluginSource:
    """Returns the source of the module that a class is of."""
    return PluginSource.of_module(kind.__module__)


def own_docstring(kind: type) -> str:
    """Returns the docstring that a class itself has, not one of its bases; empty without one."""
    return inspect.cleandoc(vars(kind).get("__doc__") or "")


def _text_of(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _name_of(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None
