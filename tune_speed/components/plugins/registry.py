"""Plugins of this process: modules of the user's that add entries to our tables.

A plugin is a file, `my_nets.py`, with dicts of the names of ours, `MODELS = {"my_net": MyNet}`, or
an installed distribution with entry points in the groups `tune_speed.models` and so on. It is
code, so it is loaded only when the command line, a call or `TUNE_SPEED_PLUGINS` names it, never
because a recipe does. Processes that this one starts inherit the variable; other machines get files
as source (`shipped`, `receive`), distributions by name.
"""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pydantic import Field, TypeAdapter

from tune_speed.components.plugins.distributions import PluginDistribution
from tune_speed.components.plugins.source import read_file, refusal, run_file
from tune_speed.components.plugins.validation import Entries, add, problems_of, remove, tables_of
from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, Problem, StorageError
from tune_speed.core.folders import default_cache_dir
from tune_speed.runtime.atomic_file import write_atomically

VARIABLE = "TUNE_SPEED_PLUGINS"
"""Names of plugins, separated as folders in PATH are."""
_ONE_FILE = (
    "A plugin is one file, as workers get it: put both into one, or make them a distribution with"
    " entry points."
)
_log = logging.getLogger(__name__)


class Plugin(Config):
    """A plugin of this process."""

    name: str
    """As it was given: a file, or a distribution."""
    title: str
    """What records call it: the file's name without its folder, or the distribution's."""
    source_hash: str
    """First 16 hex digits of SHA-256 over the file's bytes, or over the distribution's name and
    version and the files of its entries' modules."""
    file: str | None = None
    """Absolute path of the file; None for a distribution."""
    source: str | None = Field(default=None, repr=False)
    """The file's text; None for a distribution."""
    version: str | None = None
    """The distribution's; None for a file."""


_LOADED: dict[str, tuple[Plugin, Entries]] = {}
"""By title, in the order in which they were loaded."""
_PLUGINS = TypeAdapter(list[Plugin])


def load(names: Iterable[str]) -> tuple[Plugin, ...]:
    """Raises: ConfigError with every mistake of theirs; then none of them is loaded."""
    before, problems, found = set(_LOADED), list[Problem](), list[Plugin]()
    for name in dict.fromkeys(names):
        try:
            found.append(_load(name))
        except ConfigError as error:
            problems += error.problems
    if problems:
        _unload(set(_LOADED) - before)
        raise ConfigError(problems=tuple(dict.fromkeys(problems)))
    _set_variable()
    return tuple(dict.fromkeys(found))


def load_from_environment() -> tuple[Plugin, ...]:
    return load(name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name)


def loaded() -> tuple[Plugin, ...]:
    return tuple(plugin for plugin, _ in _LOADED.values())


def hashes() -> dict[str, str]:
    return {plugin.title: plugin.source_hash for plugin in loaded()}


def expect(recorded: Mapping[str, str], *, of: str) -> None:
    """Raises: ConfigError if a plugin of a record is not loaded; warns where one has changed."""
    here = hashes()
    missing = [title for title in recorded if title not in here]
    if missing:
        options = " ".join(f"--plugin {shlex.quote(title)}" for title in missing)
        must = f"{of} was trained with plugins, which must be loaded"
        hint = f"Add `{options}`, with the folder that holds it."
        raise refusal(must, given=f"none called {', '.join(missing)}", hint=hint)
    for title, source_hash in recorded.items():
        if here[title] != source_hash:
            text = "the plugin %s has changed since %s: its source was %s then, and is %s now"
            _log.warning(text, title, of, source_hash, here[title])


def unload() -> None:
    """Configurations that were made with them cannot be written any more: for tests."""
    _unload(set(_LOADED))
    _set_variable()


def shipped() -> str:
    """Returns what is loaded in this process as JSON, for `receive`; empty if nothing is."""
    # Where a user keeps files is nobody else's business.
    here = [plugin.model_copy(update={"file": None}) for plugin in loaded()]
    return _PLUGINS.dump_json(here).decode() if here else ""


def receive(text: str) -> None:
    """Loads what another process has loaded, as `shipped` returned there; files from the cache.

    Raises: ConfigError if a distribution is not installed here, or is another version; StorageError
        if the cache cannot be written.
    """
    for plugin in _PLUGINS.validate_json(text) if text else []:
        if hashes().get(plugin.title) == plugin.source_hash:
            continue
        load([plugin.name if plugin.source is None else _written(plugin, plugin.source)])
        here, _ = _LOADED[plugin.title]
        if here.source_hash != plugin.source_hash:
            must = f"the plugin {plugin.title} must be the same on all nodes"
            versions = f"version {here.version} here, and {plugin.version}"
            given = f"{versions} where the search was started"
            raise refusal(must, given=given, hint="Install the same on this node.")


def _load(name: str) -> Plugin:
    plugin, run = _open(name)
    known, _ = _LOADED.get(plugin.title, (None, None))
    if known is None:
        entries = run()
        add(entries, source_hash=plugin.source_hash)
        _LOADED[plugin.title] = plugin, entries
        return plugin
    if known.source_hash == plugin.source_hash:
        return known
    if known.file == plugin.file:
        must = "must not change after it was loaded"
        hint = "Start a new process, or call `unload()` before."
    else:
        must = f"must not be called as another plugin that is loaded, {known.file or known.name}"
        hint = "Records tell plugins apart by their file's name: rename one of them."
    raise refusal(must, file=plugin.file or plugin.name, hint=hint)


def _open(name: str) -> tuple[Plugin, Callable[[], Entries]]:
    if not name.endswith(".py"):
        found = PluginDistribution(name)
        of = {"title": found.title, "source_hash": found.source_hash(), "version": found.version}
        return Plugin(name=name, **of), found.run
    must = "must be a Python file, or without `.py` an installed distribution"
    file = read_file(name, must=must)

    def run() -> Entries:
        module = run_file(file, prefix="tune_speed_plugin", one_file=_ONE_FILE)
        if problems := problems_of(module, file.path):
            del sys.modules[module.__name__]
            raise ConfigError(problems=tuple(problems))
        return tables_of(module)

    of = {"title": Path(file.path).name, "source_hash": file.source_hash}
    return Plugin(name=name, file=file.path, source=file.source, **of), run


def _unload(titles: set[str]) -> None:
    for title in titles:
        _, entries = _LOADED.pop(title)
        remove(entries)


def _set_variable() -> None:
    names = [plugin.file or plugin.name for plugin in loaded()]
    if names:
        os.environ[VARIABLE] = os.pathsep.join(names)
    else:
        os.environ.pop(VARIABLE, None)


def _written(plugin: Plugin, source: str) -> str:
    # The title comes from another process: one with a separator could leave the folder.
    assert Path(plugin.title).name == plugin.title
    folder = default_cache_dir() / "plugins" / plugin.source_hash
    try:
        # Only this user may write there, as the file is run as code.
        # With `parents=True` alone, the folder between them would have the default mode.
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        with write_atomically(folder / plugin.title) as file:
            file.write(source.encode())
    except OSError as error:
        raise StorageError(
            f"The plugin {plugin.title} must be written to {folder}, but: {error.strerror}. Set"
            " TUNE_SPEED_CACHE to a folder that can be written."
        ) from error
    return str(folder / plugin.title)
