"""Packages whose public names are imported when they are first used."""

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`: public names by their module, relative to the package."""
    homes = {name: module for module, names in modules.items() for name in names}

    def getattr_(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{homes[name]}", package), name)

    return getattr_


def lazy_modules(package: str, names: Collection[str]) -> Callable[[str], ModuleType]:
    """Returns the `__getattr__` of a package whose modules are imported when first used."""

    def getattr_(name: str) -> ModuleType:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f".{name}", package)

    return getattr_
