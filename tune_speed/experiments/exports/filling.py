"""Templates of scripts, filled."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

OPTIONAL = {"import math\n": "math", "from torch import nn\n": "nn"}
"""Imports that not every script needs, and the name that each gives."""


def rendered(template: str, facts: Mapping[str, Any]) -> str:
    """Returns the text of a template, filled: what is in it, as a formatter leaves it."""
    text = _environment().get_template(template).render(facts)
    for line, name in OPTIONAL.items():
        is_used = re.search(rf"(?<![\w.]){name}\.", text)
        text = text if is_used else text.replace(line, "", 1)
    # Two blank lines before what is at the top, whatever was left out before it.
    tops = r"\n{2,}(?=(?:@|def |class |if __name__|conv3x3 =))"
    return re.sub(tops, "\n\n\n", text).rstrip() + "\n"


def literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    text = repr(value)
    return f'"{text[1:-1]}"' if text[0] == "'" and not {'"', "\\"} & set(text) else text


@cache
def _environment() -> Environment:
    folder = files(__package__) / "templates"
    environment = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["repr"] = literal
    return environment
