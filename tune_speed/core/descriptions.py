"""What the fields of configurations mean: the docstrings below them, read on first use."""

# Pydantic could read them whenever a class is made (`use_attribute_docstrings`). That is a third of
# the time that importing the package takes, in every command and every trial process.

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def descriptions(kind: type[BaseModel]) -> dict[str, str]:
    """Returns what fields mean, by name, inherited ones too; those without a text are left out."""
    bases = [base for base in reversed(kind.__mro__) if issubclass(base, BaseModel)]
    found = {name: text for base in bases[1:] for name, text in _own(base)}
    texts = {
        name: field.description or found.get(name) for name, field in kind.model_fields.items()
    }
    return {name: text for name, text in texts.items() if text}


def _own(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yields the fields that a class itself declares, with the string below each."""
    declared = _declared(kind.__module__).get(kind.__qualname__)
    for field, below in pairwise(declared.body if declared else []):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, inspect.cleandoc(str(below.value.value))


@cache
def _declared(module: str) -> dict[str, ast.ClassDef]:
    """Returns the classes of a module, by qualified name; none without a file (a notebook)."""
    # `inspect.getsource` of a class would parse the whole file again for each.
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):
        return {}
    return dict(_classes(ast.parse(source), prefix=""))


def _classes(node: ast.AST, *, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}{child.name}", child
            inner = f"{prefix}{child.name}."
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{prefix}{child.name}.<locals>."
        yield from _classes(child, prefix=inner)
