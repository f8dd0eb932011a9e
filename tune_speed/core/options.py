"""Options as the caller writes them: of a command, or as keywords of a call from Python."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

KEYWORDS: ContextVar[Mapping[str, Any] | None] = ContextVar("keywords", default=None)
"""The keywords of the present call from Python; None while a command runs."""
SET = "--set "
"""Begins the place of a value that was set by hand, see `Problem.file`."""


def switch(name: str) -> str:
    """Returns `--from-mlflow`, or `from_mlflow=True`."""
    return f"--{name}" if KEYWORDS.get() is None else f"{name.replace('-', '_')}=True"


def option(name: str) -> str:
    """Returns `--trials`, or `trials=`."""
    return f"--{name}" if KEYWORDS.get() is None else f"{name}="


def setting(path: str, value: str | float) -> str:
    """Returns `--set epochs=VALUE`, or `set={"epochs": VALUE}`."""
    if KEYWORDS.get() is None:
        return f"{SET}{path}={value}"
    is_bare = not isinstance(value, str) or value.isupper()
    shown = value if is_bare else f'"{value}"'
    return f"study={shown}" if path == "study" else f'set={{"{path}": {shown}}}'


def shown_place(file: str) -> str:
    """Returns a file's name, or how the value was set that is meant."""
    given = KEYWORDS.get()
    if given is None or not file.startswith(SET):
        return file
    path, _, value = file.removeprefix(SET).partition("=")
    name = path.rpartition(".")[2]
    return f'set={{"{path}": {value}}}' if given.get(name) is None else f"{name}={value}"
