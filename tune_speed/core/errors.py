"""Exceptions that users meet, with exit codes; everything else that escapes is a bug of ours.

Exit code 0: done; 1: no target was met, or a bug; 130: Ctrl-C.
"""

import errno
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tune_speed.core.redact import redact
from tune_speed.core.text import printable, printable_lines, shown_place


class TuneSpeedError(Exception):
    """Base of all errors whose message is meant for the user."""

    exit_code = 1


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake in something that the user wrote."""

    path: str
    """Dotted path of the field, such as `recipe.optimizer.sgd.lr`; empty for a whole file."""
    must: str
    given: str | None = None
    """What was given, as the user wrote it."""
    hint: str | None = None
    file: str | None = None
    """File name or `--set`; None where the value came from a call."""
    line: int | None = None
    """Line in `file`, counted from 1."""
    is_data: bool = False
    """Whether data are missing, and not that something was written wrongly."""

    def __str__(self) -> str:
        file = None if self.file is None else shown_place(self.file)
        place = ":".join(str(part) for part in (file, self.line) if part is not None)
        text = f"{self.path}: {self.must}" if self.path else self.must
        text += f", but got {self.given}" if self.given is not None else ""
        text += "" if text.endswith("?") else "."
        text += f" {self.hint}" if self.hint else ""
        whole = redact(f"{place}: {text}" if place else text)
        # A line break in a name would make the rest look like a line of ours.
        return printable(" ".join(whole.splitlines()))


class ConfigError(TuneSpeedError, ValueError):
    """What the user wrote cannot work. `problems` holds every mistake that was found."""

    exit_code = 2

    def __init__(self, message: str = "", *, problems: tuple[Problem, ...] = ()) -> None:
        self.problems = problems
        super().__init__("\n".join([*([message] if message else []), *map(str, problems)]))

    @classmethod
    def of(cls, path: str, must: str, **rest: Any) -> Self:
        return cls(problems=(Problem(path=path, must=must, **rest),))


class DataError(TuneSpeedError):
    """A data set is missing, unreadable or not what it should be."""

    exit_code = 3


class ServiceError(TuneSpeedError):
    """Ray or MLflow cannot be reached, or does not have what was requested."""

    exit_code = 4


class StorageError(TuneSpeedError):
    """A disk is full, a folder cannot be written, or a file of ours is damaged."""

    exit_code = 5


_REMEDIES = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EACCES: "Give yourself the right to write there",
    errno.EPERM: "Give yourself the right to write there",
    errno.EROFS: "Mount the disk so that it can be written",
    errno.EFBIG: "Raise the limit of a file's size (`ulimit -f`)",
}


def unwritable(path: Path, error: OSError, *, hint: str = "") -> ConfigError | StorageError:
    """Returns the error of a file that cannot be written; `hint` is a way out, without a stop."""
    why = _in_the_way(path, error)
    if not why and isinstance(error, FileNotFoundError):
        return ConfigError(
            f"{path} must be in a folder that exists, but there is no {path.parent}. Make it, or"
            " name another file."
        )
    ways = ", or ".join(filter(None, (_REMEDIES.get(error.errno or 0), hint)))
    why = why or f"{error.strerror or error}.{ways and f' {ways[0].upper()}{ways[1:]}.'}"
    return StorageError(f"{path} cannot be written: {why}")


@contextmanager
def writing(path: Path, *, hint: str = "") -> Iterator[None]:
    """Raises: ConfigError or StorageError, as `unwritable` says, for an OSError within."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, hint=hint) from error


def _in_the_way(path: Path, error: OSError) -> str:
    # Not `Path.is_file`, which raises an error where a folder must not be searched.
    if file := next((each for each in path.parents if os.path.isfile(each)), None):
        return f"{file} is a file, and must be a folder. Move it away, or name another."
    if error.errno == errno.ELOOP and os.path.islink(path):
        return f"it is a link, to {os.readlink(path)}. Remove the link, or name another file."
    lost = (each for each in path.parents if os.path.islink(each) and not os.path.exists(each))
    if error.errno != errno.EACCES and (link := next(lost, None)):
        return f"{link} is a link to {os.readlink(link)}, where no folder is. Remove the link."
    if os.path.isdir(path):
        return "it is a folder. Move it away, or name another file."
    return ""


def refuse_link(folder: Path) -> None:
    """Raises: StorageError if a folder in which files of ours are written and removed is a link."""
    if os.path.islink(folder):
        raise StorageError(
            f"{folder} must be a folder, but it is a link, to {os.readlink(folder)}. Remove the"
            " link; to have a study on another disk, link its folder as a whole."
        )


class SetUpFailed(TuneSpeedError):
    """A process of trials has not the device, or the share of it, that it was to have."""


class DeviceFailed(TuneSpeedError):
    """An error of the accelerator, after which nothing works on it in the same process."""


def first_line(error: BaseException) -> str:
    # `chr(10)`: before Python 3.12 no backslash may be within the braces of an f-string.
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


# Characters of a reason to stop, which is one line of tables and terminals.
MOST_OF_REASON = 500
MOST_OF_TRACEBACK = 50_000


def reason_of(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {str(error).strip() or 'no message'}")


def traceback_of(error: BaseException) -> str:
    return readable("".join(traceback.format_exception(error)), most=MOST_OF_TRACEBACK)


def one_line(text: str) -> str:
    # The whole may be megabytes: only its beginning is cut into lines.
    lines = text[: 4 * MOST_OF_REASON].strip().splitlines()
    return readable(lines[0] if lines else "", most=MOST_OF_REASON)


def readable(text: str, *, most: int = MOST_OF_TRACEBACK) -> str:
    """Returns `text` redacted and fit for any terminal or database, its middle cut after `most`."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]} … ({len(text) - 2 * half} characters left out) … {text[-half:]}"
    return printable_lines(redact(text))
