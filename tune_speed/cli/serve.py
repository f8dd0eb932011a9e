"""The command that shows a store in a browser while it changes: `serve`."""

import sys
from typing import Annotated

import typer

from tune_speed.cli.common import INTERRUPTED, JsonOption, note, say, say_json


def serve(
    host: Annotated[
        str, typer.Option(help="Listen here; other than loopback, viewers need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Listen here; 0: any.")] = 8420,
    as_json: JsonOption = False,
) -> None:
    """Show all studies in a browser while they are searched. Ctrl-C ends it (exit code 130).

    Reads MLflow alone and changes nothing. The token is $TUNE_SPEED_TOKEN, or made anew.

    Example: tune-speed serve
    """
    from tune_speed.cli.report import recipe_text
    from tune_speed.reporting.server import run
    from tune_speed.tracking.store.uri import tracking_uri

    def announce(address: str) -> None:
        if as_json:
            say_json({"url": address})
        else:
            say(f"open it in a browser: {address}")
        # Nothing more is printed there, and a pipe would wait for more.
        sys.stdout.flush()
        note("Ctrl-C ends it")

    try:
        run.serve(tracking_uri(), host=host, port=port, recipe_yaml=recipe_text, announce=announce)
    except KeyboardInterrupt:
        note("stopped serving; searches are not touched")
        raise typer.Exit(INTERRUPTED) from None
