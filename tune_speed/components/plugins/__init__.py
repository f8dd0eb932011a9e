"""A user's own entries of our tables: found, checked, hashed, loaded and shipped.

A plugin is a Python file or an installed distribution; `registry` says how it is loaded. Its
authors import from `tune_speed.components`.
"""

from typing import TYPE_CHECKING

from tune_speed.core.lazy import lazy_names

if TYPE_CHECKING:
    from tune_speed.components.plugins.registry import Plugin, hashes, load, loaded, unload

__all__ = ["Plugin", "hashes", "load", "loaded", "unload"]

# Lazily: with the registry come all tables.
__getattr__ = lazy_names(__name__, {"registry": tuple(__all__)})
