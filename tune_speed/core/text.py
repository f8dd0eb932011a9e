"""Texts of strangers, made fit for a terminal.

Names, reasons and tracebacks come from study files, data sets and MLflow servers of anybody. A
terminal obeys some characters in them: it moves, colours, links, retitles its window, or shows
what stands further right first.
"""

import re
from datetime import UTC, datetime

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


def moment_of(text: str) -> datetime | None:
    """Returns the moment that `text` says in ISO 8601, in UTC; None if it says none.

    One without a time zone is taken for UTC.
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def moment_s(text: str) -> float:
    """Returns the seconds since 1970 of a moment; 0.0 if `text` says none, which is long ago."""
    moment = moment_of(text)
    return 0.0 if moment is None else moment.timestamp()
