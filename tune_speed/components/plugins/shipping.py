"""Plugins on their way to other processes: files travel as source, distributions by name."""

import os
import tempfile
from pathlib import Path

from pydantic import TypeAdapter

from tune_speed.components.plugins import registry
from tune_speed.components.plugins.plugin import Plugin, refusal
from tune_speed.core.errors import StorageError
from tune_speed.core.folders import default_cache_dir

_PLUGINS = TypeAdapter(list[Plugin])


def shipped() -> str:
    """Returns what is loaded in this process as JSON, for `receive`; empty if nothing is."""
    here = [plugin.model_copy(update={"file": None}) for plugin in registry.loaded()]
    return _PLUGINS.dump_json(here).decode() if here else ""


def receive(text: str) -> None:
    """Loads what another process has loaded, where this one has not.

    A file is written to `<cache>/plugins/<source_hash>/`, and run from there.

    Args:
        text: what `shipped` returned there.

    Raises:
        ConfigError: a distribution is not installed here, or is another version.
        StorageError: the cache cannot be written.
    """
    for plugin in _PLUGINS.validate_json(text) if text else []:
        if registry.hashes().get(plugin.title) != plugin.source_hash:
            registry.load([_name_here(plugin)])
            _refuse_other(plugin)


def _name_here(plugin: Plugin) -> str:
    return plugin.name if plugin.source is None else str(_write(plugin, plugin.source))


def _write(plugin: Plugin, source: str) -> Path:
    """Returns the file of a plugin on this machine, which only this user can have written."""
    assert Path(plugin.title).name == plugin.title
    folder = default_cache_dir() / "plugins" / plugin.source_hash
    try:
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / plugin.title
        # Other processes of this node write the same at the same time.
        descriptor, written = tempfile.mkstemp(dir=folder, suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            file.write(source.encode())
        os.replace(written, path)
    except OSError as error:
        raise StorageError(
            f"The plugin {plugin.title} must be kept in {folder}, but: {error.strerror}. Set"
            " TUNE_SPEED_CACHE to a folder that can be written."
        ) from error
    return path


def _refuse_other(plugin: Plugin) -> None:
    here = next(each for each in registry.loaded() if each.title == plugin.title)
    if here.source_hash == plugin.source_hash:
        return
    must = f"the plugin {plugin.title} must be the same on all nodes"
    given = f"version {here.version} here, and {plugin.version} where the search was started"
    raise refusal(must, given=given, hint="Install the same on this node.")
