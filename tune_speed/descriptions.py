"""What the fields of configurations mean: the docstrings below them, read once somebody asks.

Pydantic could read them whenever a class is made (`use_attribute_docstrings`). That is a third of
the time that importing the package takes, in every command and every trial process.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def descriptions(kind: type[BaseModel]) -> dict[str, str]:
    """Returns what each field means, by its name: its description, or the docstring below it.

    Inherited ones too; fields that have neither are left out.
    """
    bases = [base for base in reversed(kind.__mro__) if issubclass(base, BaseModel)]
    found = {name: text for base in bases[1:] for name, text in _own(base)}
    texts = {
        name: field.description or found.get(name) for name, field in kind.model_fields.items()
    }
    return {name: text for name, text in texts.items() if text}


def _own(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yields the fields that a class itself declares, with the string below each."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(declared, ast.ClassDef), kind
    for field, below in pairwise(declared.body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, inspect.cleandoc(str(below.value.value))
