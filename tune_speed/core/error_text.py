"""What errors say, made fit to keep: bounded, printable, without passwords.

Messages come from anywhere: a library may put a whole tensor, a URL with its password or a codec's
lone surrogates into one. Ledgers, terminals and databases take what is left here; PostgreSQL, for
one, refuses a NUL in a text.
"""

import traceback

from tune_speed.core.redact import redact
from tune_speed.core.text import printable_lines

MOST_OF_REASON = 500
"""Characters of a reason to stop, which is one line of tables and terminals."""
MOST_OF_TRACEBACK = 50_000
"""Characters of a traceback."""


def reason_of(error: BaseException) -> str:
    """Returns kind and first line of an error's message, in at most `MOST_OF_REASON` characters."""
    message = str(error).strip() or "no message"
    return one_line(f"{type(error).__name__}: {message}")


def traceback_of(error: BaseException) -> str:
    """Returns an error's traceback; of one that is too long, its beginning and its end."""
    return readable("".join(traceback.format_exception(error)), most=MOST_OF_TRACEBACK)


def one_line(text: str) -> str:
    """Returns the first line of `text`, fit to keep."""
    lines = text[: 4 * MOST_OF_REASON].strip().splitlines()
    return readable(lines[0] if lines else "", most=MOST_OF_REASON)


def readable(text: str, *, most: int = MOST_OF_TRACEBACK) -> str:
    """Returns `text` in about `most` characters at most, cut in the middle.

    Passwords in URLs are hidden, and what no terminal or database should get is replaced.
    """
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"
    return printable_lines(redact(text))
