"""The study file: YAML whose values know their lines, `--set` overrides, the search space, checks.

A file is read (`yaml`), overridden, checked with every mistake at its line (`validation`), and
becomes a `StudyFile` for a search or a `RecipeFile` for one training. Editors complete and check it
by `json_schema`. No Optuna: `tuning` translates a `SearchSpace` to distributions.
"""

from importlib import import_module
from typing import Any

_MODULES = {
    "AblateConfig": "settings",
    "CertifyConfig": "settings",
    "Parameter": "parameter",
    "RecipeFile": "file",
    "ResourceConfig": "settings",
    "SearchConfig": "settings",
    "SearchSpace": "space",
    "StudyFile": "file",
    "StudySchema": "schema",
    "dump_yaml": "yaml",
    "load_recipe": "file",
    "load_study": "file",
    "parse_yaml": "yaml",
    "read_yaml": "yaml",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    """Returns a public name of the room. Its module is imported only when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
