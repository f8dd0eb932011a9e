"""Messages of calls from Python: options of commands become keywords."""

import functools
import logging
import re
from collections.abc import Callable, Mapping
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
