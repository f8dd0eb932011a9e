"""What every call begins with; options of commands in its messages become keywords."""

import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tune_speed.core.errors import ConfigError, TuneSpeedError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)
# Whole commands stay as they are: they are for a shell.
_OPTION = re.compile(
    r"(?P<command>`[^`]*tune-speed [^`]*`)"
    r"|--set (?P<path>[A-Za-z_][\w.]*)=(?P<value>[\w+-]+(?:\.\w+)*)"
    r"|--(?P<flag>resume|from-mlflow|download|again)\b"
    r"|--(?P<value_of>trials|address)\b"
)


def in_python(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Returns the call with errors that speak of its keywords, unless a command makes it."""

    @functools.wraps(call)
    def called(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return call(*args, **options)
        except (TuneSpeedError, KeyboardInterrupt) as error:
            # Commands bring a `Progress` of their own.
            if hasattr(options.get("progress"), "line"):
                raise
            _log.debug("a call ended", exc_info=True)
            if isinstance(error, TuneSpeedError):
                error.args = (_with_keywords(error, options),)
            # The message says it all: below it would come forty lines about our own code.
            raise error.with_traceback(None) from None

    return called


def _with_keywords(error: TuneSpeedError, options: Mapping[str, Any]) -> str:
    text = str(error)
    for problem in error.problems if isinstance(error, ConfigError) else ():
        option, _, path_and_value = (problem.file or "").partition("--set ")
        path, _, value = path_and_value.partition("=")
        name = path.rpartition(".")[2]
        given = f"{name}={value}" if options.get(name) is not None else f'set={{"{path}": {value}}}'
        text = text if option or not path else text.replace(f"--set {path_and_value}", given)
    return _OPTION.sub(_keyword, text)


def _keyword(option: re.Match[str]) -> str:
    if option["flag"]:
        return f"{option['flag'].replace('-', '_')}=True"
    if option["command"]:
        return option["command"]
    if option["value_of"]:
        return f"{option['value_of']}="
    path, value = option["path"], option["value"]
    if not re.fullmatch(r"[-+\d.e]+|[A-Z]+", value):
        value = f'"{value}"'
    return f"study={value}" if path == "study" else f'set={{"{path}": {value}}}'


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
