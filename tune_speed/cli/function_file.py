"""A training function that `--train` names: its file is code, run because the command says so."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tune_speed.components.plugins.source import read_file, refusal, run_file
from tune_speed.study.mistake import near_miss

_FORM = "must be a Python file and the name of a function in it, FILE.py:FUNCTION"
_OPTION = "--train"
_ONE_FILE = (
    "The file of a training function travels alone to the workers: put both into one, or install"
    " the other, here and on all nodes."
)


def function_of(name: str) -> Callable[..., Any]:
    """Runs a Python file and returns the training function that `FILE.py:FUNCTION` names.

    Its signature is not validated.

    Raises: ConfigError if there is no such file or function, or the file does not run.
    """
    path, function = _parts(name)
    file = read_file(path, must=_FORM)
    module = run_file(file, prefix="tune_speed_loop", one_file=_ONE_FILE)
    if function not in vars(module):
        # What the file imports is callable too, but not its own.
        own = [
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", None) == module.__name__
        ]
        there = f"There are {', '.join(own[:8])}." if own else None
        must, hint = "must have the function that --train names", near_miss(function, own) or there
        raise refusal(must, given=f"`{function}`", file=file.path, hint=hint)
    found: Callable[..., Any] = vars(module)[function]
    if not callable(found):
        must, line = f"`{function}` must be a function of (params, run)", file.line(function)
        raise refusal(must, given=f"{found!r:.80}", file=file.path, line=line)
    return found


def again_with(name: str) -> str:
    return f" {_OPTION} {shlex.quote(name)}"


def _parts(name: str) -> tuple[str, str]:
    """Returns file and function. Raises: ConfigError if one of them is missing."""
    # From the right, as a path may hold colons and a function's name cannot.
    path, colon, function = name.rpartition(":")
    if not colon:
        path, function = name, ""
    if path.endswith(".py") and function:
        return path, function
    hint = "Such as my_loop.py:my_train."
    if path.endswith(".py"):
        hint = f"Name the function too, such as {path}:my_train."
    elif function and Path(f"{path}.py").is_file():
        hint = f"Did you mean {path}.py:{function}?"
    raise refusal(_FORM, given=repr(name), file=_OPTION, hint=hint)
