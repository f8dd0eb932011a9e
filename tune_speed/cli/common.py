"""What the commands share: options, forms of output, printing.

Results go to stdout, all else to stderr. Whatever a name, a reason or a traceback of a stranger's
holds, no terminal obeys it.
"""

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune_speed.core.text import printable_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tune_speed.reporting.leaderboard.ranking import Board

NOT_REACHED = 1
INTERRUPTED = 130


class Format(StrEnum):
    """Forms of leaderboards and listings."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


def load_plugins(names: list[str] | None) -> list[str] | None:
    """Loads what `--plugin` names, before the command looks at anything. Raises: ConfigError."""
    if names:
        from tune_speed.components.plugins import registry

        registry.load(names)
    return names


def load_plugins_of_environment() -> None:
    """Loads what `TUNE_SPEED_PLUGINS` names, unless help is asked for. Raises: ConfigError."""
    if os.environ.get("TUNE_SPEED_PLUGINS") and "--help" not in sys.argv:
        from tune_speed.components.plugins import registry

        registry.load_from_environment()


PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="NAME",
        callback=load_plugins,
        help="Your own models, data sets …: a Python file, or an installed distribution;"
        " repeatable.",
    ),
]
TrainOption = Annotated[
    str | None,
    typer.Option(
        "--train",
        metavar="FILE:FUNCTION",
        help="Your own training function, of which the study is: my_loop.py:my_train.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a field of the file; repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead.")]
DownloadOption = Annotated[
    bool, typer.Option("--download", help="Fetch the data set if it is missing.")
]
StudyOption = Annotated[str | None, typer.Option("--study", help="Only this study.")]
WorkloadOption = Annotated[str | None, typer.Option("--workload", help="Only this workload.")]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Only devices whose name contains this.")
]


def print_wide(renderable: "RenderableType") -> None:
    """Prints on stdout; piped output is 100 characters wide."""
    from tune_speed.reporting.display import PlainConsole

    PlainConsole(width=None if sys.stdout.isatty() else 100).print(renderable)


def stderr() -> "Console":
    """Returns a console on stderr that shows texts as they are."""
    from tune_speed.reporting.display import PlainConsole

    return PlainConsole(stderr=True, markup=False, highlight=False, soft_wrap=True)


def note(line: str) -> None:
    """Prints a line on stderr, never as markup."""
    print(printable_lines(line), file=sys.stderr, flush=True)


def say(text: str, *, end: str = "\n") -> None:
    """Prints a text on stdout, never as markup."""
    print(printable_lines(text), end=end)


def print_decoding(done: int, total: int) -> None:
    """Prints how many images are decoded: on a terminal as they are, else once they all are."""
    end = "\n" if done >= total else ""
    if sys.stderr.isatty() or end:
        print(f"\rpreparing data: {done}/{total} images", end=end, file=sys.stderr, flush=True)


def print_boards(boards: list["Board"], form: Format) -> None:
    """Prints leaderboards on stdout."""
    from tune_speed.reporting.leaderboard import tables as report

    if form is Format.TABLE:
        from tune_speed.reporting.display import PlainConsole
        from tune_speed.reporting.leaderboard.tables import as_renderable

        # Piped output is not cut to a terminal's width.
        console = PlainConsole(width=None if sys.stdout.isatty() else 200)
        console.print(as_renderable(boards))
        return
    forms = {
        Format.JSON: report.as_json,
        Format.CSV: report.as_csv,
        Format.MARKDOWN: report.as_markdown,
    }
    say(forms[form](boards))


def write_text(path: Path, text: str) -> None:
    """Writes a file. Raises: StorageError if it cannot be written."""
    from tune_speed.core.errors import StorageError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} must be writable, but got: {error.strerror}.") from error


def print_listing(rows: list[dict[str, Any]], form: Format, *, title: str) -> None:
    """Prints rows of the same fields on stdout."""
    from tune_speed.reporting.table import Table

    if form is Format.JSON:
        say(json.dumps(rows, indent=2))
    elif form is Format.MARKDOWN:
        say(Table.of_rows(rows).markdown(verbatim=True))
    elif form is Format.CSV:
        say(Table.of_rows(rows).csv(), end="")
    else:
        print_rows(rows, title=title)


def print_rows(rows: list[dict[str, Any]], *, title: str) -> None:
    """Prints rows of the same fields as a table on stdout."""
    from tune_speed.reporting.display import PlainConsole
    from tune_speed.reporting.table import Table

    if not rows:
        note(f"no {title} on record")
        return
    table = Table.of_rows(rows, title=title)
    PlainConsole(width=None if sys.stdout.isatty() else 160).print(table)
