"""A user's own entries of our tables: found, checked, hashed, loaded and shipped.

A plugin is a Python file or an installed distribution; `registry` says how it is loaded. Its
authors import from `tune_speed.components`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.components.plugins.registry import Plugin, hashes, load, loaded, unload

__all__ = ["Plugin", "hashes", "load", "loaded", "unload"]


def __getattr__(name: str) -> Any:
    """Imports the registry, and with it all tables, when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tune_speed.components.plugins import registry

    return getattr(registry, name)
