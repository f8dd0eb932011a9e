"""Texts of strangers, made fit for a terminal.

Names, reasons and tracebacks come from study files, data sets and MLflow servers of anybody. A
terminal obeys some characters in them: it moves, colours, links, retitles its window, or shows
what stands further right first.
"""

import re

_MARK = "\N{REPLACEMENT CHARACTER}"
_LINES = re.compile(r"[^\n\t]+")


def printable(text: str) -> str:
    """Returns `text` with a mark for each character that a terminal obeys or YAML refuses."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _MARK for c in text)


def printable_lines(text: str) -> str:
    """Returns `text` as `printable` does, but leaves line feeds and tabs."""
    return _LINES.sub(lambda match: printable(match[0]), text)
