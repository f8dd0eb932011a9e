"""What a plugin is, before and after its code runs."""

from collections.abc import Callable
from typing import NamedTuple

from pydantic import Field

from tune_speed.components.plugins.tables import Entries
from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, Problem


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


class Opened(NamedTuple):
    """A plugin that was found; none of its code has run."""

    plugin: Plugin
    run: Callable[[], Entries]
    """Runs its code and returns its entries, checked. Raises: ConfigError with every mistake."""


def refusal(
    must: str,
    *,
    file: str | None = None,
    line: int | None = None,
    given: str | None = None,
    hint: str | None = None,
) -> ConfigError:
    """Returns the error of a plugin that cannot be loaded."""
    problem = Problem(path="", must=must, given=given, hint=hint, file=file, line=line)
    return ConfigError(problems=(problem,))
