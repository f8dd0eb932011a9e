"""Plugins: modules of the user's that add entries to our tables.

A plugin is a file, `my_nets.py`, with dicts of the names of ours, `MODELS = {"my_net": MyNet}`, or
an installed distribution with entry points in the groups `tune_speed.models` and so on. It is
code, so it is loaded only when the command line, a call or `TUNE_SPEED_PLUGINS` names it, never
because a recipe does. What is loaded is in the process's tables from then on, and in
`TUNE_SPEED_PLUGINS`, from which processes that this one starts learn of it.
"""

import logging
import os
import shlex
from collections.abc import Iterable, Mapping

from tune_speed.components.plugins.distributions import open_distribution
from tune_speed.components.plugins.files import open_file
from tune_speed.components.plugins.plugin import Plugin, refusal
from tune_speed.components.plugins.tables import Entries, add, remove, tables_of
from tune_speed.components.plugins.validation import problems_of
from tune_speed.core.errors import ConfigError, Problem

VARIABLE = "TUNE_SPEED_PLUGINS"
"""Names of plugins, separated as folders in PATH are."""

_log = logging.getLogger(__name__)

_LOADED: dict[str, tuple[Plugin, Entries]] = {}
"""By title, in the order in which they were loaded."""


def load(names: Iterable[str]) -> tuple[Plugin, ...]:
    """Loads plugins and returns them; what is loaded already stays as it is.

    Args:
        names: files that end in `.py`, or installed distributions.

    Raises: ConfigError with every mistake of theirs; then none of them is loaded.
    """
    before, problems, found = set(_LOADED), list[Problem](), list[Plugin]()
    for name in dict.fromkeys(names):
        try:
            found.append(_load(name))
        except ConfigError as error:
            problems += error.problems
    if problems:
        _unload(set(_LOADED) - before)
        raise ConfigError(problems=tuple(dict.fromkeys(problems)))
    _tell_children()
    return tuple(dict.fromkeys(found))


def load_from_environment() -> tuple[Plugin, ...]:
    """Loads what `TUNE_SPEED_PLUGINS` names. Raises: as `load`."""
    return load(name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name)


def loaded() -> tuple[Plugin, ...]:
    """Returns what is loaded in this process, in the order in which it was."""
    return tuple(plugin for plugin, _ in _LOADED.values())


def hashes() -> dict[str, str]:
    """Returns what is loaded as records name it: source hash by title."""
    return {plugin.title: plugin.source_hash for plugin in loaded()}


def expect(recorded: Mapping[str, str], *, of: str) -> None:
    """Refuses to go on without the plugins of a record; warns where their source has changed.

    Args:
        recorded: what a record has as `plugins`.
        of: the record, for messages.

    Raises: ConfigError if one is not loaded.
    """
    here = hashes()
    missing = [title for title in recorded if title not in here]
    if missing:
        options = " ".join(f"--plugin {shlex.quote(title)}" for title in missing)
        must = f"{of} was trained with plugins, which must be loaded"
        hint = f"Add `{options}`, with the folder where it lies."
        raise refusal(must, given=f"none called {', '.join(missing)}", hint=hint)
    for title, source_hash in recorded.items():
        if here[title] != source_hash:
            text = "the plugin %s has changed since %s: its source was %s then, and is %s now"
            _log.warning(text, title, of, source_hash, here[title])


def unload() -> None:
    """Takes all plugins' entries out of the tables again: for tests, and to load changed files.

    Configurations that were made with them cannot be written any more.
    """
    _unload(set(_LOADED))
    _tell_children()


def _load(name: str) -> Plugin:
    opened = open_file(name) if name.endswith(".py") else open_distribution(name)
    plugin, known = opened.plugin, _LOADED.get(opened.plugin.title)
    if known is not None:
        return _same(known[0], plugin)
    entries = opened.run()
    add(entries, source_hash=plugin.source_hash)
    _LOADED[plugin.title] = plugin, entries
    return plugin


def _same(known: Plugin, plugin: Plugin) -> Plugin:
    """Returns the plugin of that title that is loaded. Raises: ConfigError if it is another."""
    if known.source_hash == plugin.source_hash:
        return known
    if known.file == plugin.file:
        must = "must not change after it was loaded"
        hint = "Start a new process, or call `unload()` before."
    else:
        must = f"must not be called as another plugin that is loaded, {known.file or known.name}"
        hint = "Records tell plugins apart by their file's name: rename one of them."
    raise refusal(must, file=plugin.file or plugin.name, hint=hint)


def _unload(titles: set[str]) -> None:
    for title in titles:
        _, entries = _LOADED.pop(title)
        remove(entries)


def _tell_children() -> None:
    """Leaves in the environment what processes that this one starts are to load."""
    names = [plugin.file or plugin.name for plugin in loaded()]
    if names:
        os.environ[VARIABLE] = os.pathsep.join(names)
    else:
        os.environ.pop(VARIABLE, None)


__all__ = [
    "VARIABLE",
    "Plugin",
    "expect",
    "hashes",
    "load",
    "load_from_environment",
    "loaded",
    "problems_of",
    "tables_of",
    "unload",
]
