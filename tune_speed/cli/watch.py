"""The command on a study that runs: `watch`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli.common import INTERRUPTED, JsonOption, note, say_json, show_parts

if TYPE_CHECKING:
    from tune_speed.reporting.study.reader import StudyReader


def watch(
    study: Annotated[str, typer.Argument(help="A study in MLflow.")],
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a study while it is searched, from any shell; ends when its search ends.

    Reads MLflow alone. Ctrl-C ends watching (exit code 130), not the search. Piped, it prints a
    line for each change; with --json an object for each look.

    Example: tune-speed watch digits_quickstart
    """
    from tune_speed.reporting.study.reader import StudyReader
    from tune_speed.tracking.store.uri import tracking_uri

    try:
        reader = StudyReader(tracking_uri(), study)
        if once:
            _print_once(reader, as_json=as_json)
        else:
            _watch(reader, interval, as_json=as_json)
    except KeyboardInterrupt:
        note("stopped watching; the search is not touched")
        raise typer.Exit(INTERRUPTED) from None


def _watch(reader: "StudyReader", interval_s: float, *, as_json: bool) -> None:
    from tune_speed.reporting.display import PlainConsole
    from tune_speed.reporting.watch.loop import Json, Lines, Screen, watch

    if as_json:
        watch(reader, Json(), interval_s=interval_s)
    # Only a terminal can be redrawn; piped, each change is a line.
    elif sys.stdout.isatty():
        with Screen(PlainConsole()) as screen:
            watch(reader, screen, interval_s=interval_s)
    else:
        watch(reader, Lines(PlainConsole()), interval_s=interval_s)


def _print_once(reader: "StudyReader", *, as_json: bool) -> None:
    from tune_speed.reporting.watch.screen import screen
    from tune_speed.reporting.watch.status import as_dict, glance

    seen = glance(reader.read(with_boards=False))
    if as_json:
        say_json(as_dict(seen))
    else:
        show_parts([screen(seen)])
