"""What every call begins with."""

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from tune_speed.core.errors import ConfigError, TuneSpeedError
from tune_speed.core.text import KEYWORDS

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)


def in_python(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Returns the call with errors that speak of its keywords, unless a command makes it."""

    @functools.wraps(call)
    def called(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        # Commands bring a `Progress` of their own.
        is_command = hasattr(options.get("progress"), "line")
        given = KEYWORDS.set(KEYWORDS.get() if is_command else options)
        try:
            return call(*args, **options)
        except (TuneSpeedError, KeyboardInterrupt) as error:
            if is_command:
                raise
            _log.debug("a call ended", exc_info=True)
            # The message says it all: below it would come forty lines about our own code.
            raise error.with_traceback(None) from None
        finally:
            KEYWORDS.reset(given)

    return called


def agree_on_token(address: str | None) -> None:
    """Makes Ray send its token to a cluster that asks for one. Raises: ServiceError."""
    if address is not None:
        # Ray reads RAY_AUTH_MODE when it is imported: a training function's file may import it.
        from tune_speed.tuning.ray import token

        token.agree_on_token(address)


def load_plugins(names: Sequence[str | Path]) -> None:
    """Loads the environment's plugins and these. Raises: ConfigError."""
    from tune_speed.components.plugins.registry import load, load_from_environment

    # A text is a sequence too: each of its characters would be taken for a plugin.
    if isinstance(names, str):
        raise ConfigError(f'plugins must be a list such as ["my_nets.py"], but got {names!r}.')
    # The environment's first, as on the command line.
    load_from_environment()
    load(str(name) for name in names)


def check_least(name: str, number: int, *, least: int = 1) -> None:
    """Raises: ConfigError for a number below `least`."""
    if number < least:
        raise ConfigError(f"{name} must be {least} or more, but got {number}.")
