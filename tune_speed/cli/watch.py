"""The commands on studies that run: `watch` in a terminal, `forecast`, `serve` in a browser."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tune_speed.cli.common import (
    INTERRUPTED,
    JsonOption,
    StudyArgument,
    note,
    say,
    say_json,
    show_parts,
)


def watch(
    study: StudyArgument,
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
    from tune_speed.reporting.table import PlainConsole
    from tune_speed.reporting.watch import loop, screen, status
    from tune_speed.tracking.store.uri import tracking_uri

    try:
        reader = StudyReader(tracking_uri(), study)
        if once:
            seen = status.glance(reader.read(with_boards=False))
            if as_json:
                say_json(status.as_dict(seen))
            else:
                show_parts([screen.screen(seen)])
        elif as_json:
            loop.watch(reader, loop.Json(), interval_s=interval)
        # Only a terminal can be redrawn; piped, each change is a line.
        elif sys.stdout.isatty():
            with loop.Screen(PlainConsole()) as shown:
                loop.watch(reader, shown, interval_s=interval)
        else:
            loop.watch(reader, loop.Lines(PlainConsole()), interval_s=interval)
    except KeyboardInterrupt:
        note("stopped watching; the search is not touched")
        raise typer.Exit(INTERRUPTED) from None


def forecast(
    study: StudyArgument,
    target: Annotated[
        float | None, typer.Option(help="Another value of the target's metric.")
    ] = None,
    time_budget: Annotated[
        str | None,
        typer.Option(help="Search on for this long; default: what is left, else as long again."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast a search: the chance to meet a target, and the best one by the budget left.

    Reads MLflow alone, while the study is searched or afterwards.

    Example: tune-speed forecast digits_quickstart --target 0.98
    """
    from tune_speed.api.forecasted import Forecasted
    from tune_speed.tracking.store.uri import tracking_uri

    found = Forecasted.of(tracking_uri(), study, target=target, time_budget=time_budget)
    say_json(found.as_dict()) if as_json else show_parts(found.parts())


def serve(
    host: Annotated[
        str, typer.Option(help="Listen here; other than loopback, viewers need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Listen here; 0: any.")] = 8420,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="No buttons that steer searches.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show all studies in a browser while they are searched. Ctrl-C ends it (exit code 130).

    Reads MLflow; buttons do what `tune-speed try` and `steer` do, for searches whose folder is
    here. The token is $TUNE_SPEED_TOKEN, or made anew.

    Example: tune-speed serve
    """
    from tune_speed.cli.report import recipe_text
    from tune_speed.reporting.server import run
    from tune_speed.reporting.server.helm import Helm
    from tune_speed.tracking.store.uri import tracking_uri
    from tune_speed.tuning.driver import control

    def send(study: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return control.send(study, request).as_dict()

    def announce(address: str) -> None:
        if as_json:
            say_json({"url": address})
        else:
            say(f"open it in a browser: {address}")
        # Nothing more is printed there, and a pipe would wait for more.
        sys.stdout.flush()
        note("Ctrl-C ends it")

    try:
        run.serve(
            tracking_uri(),
            host=host,
            port=port,
            recipe_yaml=recipe_text,
            announce=announce,
            helm=None if read_only else Helm(look=control.outlook, send=send),
        )
    except KeyboardInterrupt:
        note("stopped serving; searches are not touched")
        raise typer.Exit(INTERRUPTED) from None
