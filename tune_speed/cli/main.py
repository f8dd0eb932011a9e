"""The application of the command line: its commands, and how errors end."""

import gc
import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from tune_speed.cli import (
    ablate,
    checks,
    leaderboard,
    predict,
    search,
    show,
    simulate,
    steer,
    train,
    watch,
)
from tune_speed.cli.common import load_plugins_of_environment
from tune_speed.cli.common import note as tell
from tune_speed.core.errors import ConfigError, TuneSpeedError
from tune_speed.core.renamed import LEFT_MUST, LEFT_OPTIONS
from tune_speed.core.version import __version__
from tune_speed.runtime import process

app = typer.Typer(
    name="tune-speed",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich's help imports markdown_it and pygments: `--help` took 2.2 times `import typer,
    # rich.table` with it, 1.2 times without.
    rich_markup_mode=None,
    # click folds help after 80 characters by itself.
    context_settings={"max_content_width": 100},
    help="Find the training configuration that reaches a target accuracy soonest.",
    epilog="Exit codes: 0 done; 1 nothing met the target or was certified, or a bug; 2 wrong input;"
    " 3 data missing; 4 Ray or MLflow not reachable; 5 disk full or a file of ours damaged;"
    " 130 stopped by Ctrl-C.",
)


def show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"tune-speed {__version__}")
        raise typer.Exit


@app.callback()
def begin(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    load_plugins_of_environment()


COMMANDS = (
    search.init, search.search, train.train, search.certify, predict.predict, predict.export,
    ablate.ablate, ablate.replicate, leaderboard.best, leaderboard.leaderboard, show.list_,
    show.show, watch.report, train.profile, show.compare, watch.watch, watch.forecast,
    watch.serve, steer.try_, steer.steer, steer.note, steer.delete, simulate.simulate,
    show.schema, checks.doctor,
)  # fmt: skip
for command in COMMANDS:
    # `list_` has its underscore only because `list` is Python's.
    app.command(command.__name__.rstrip("_"))(command)


def main() -> None:
    # Importing a search's libraries takes 3.4 s, a fifth of it in the garbage collector.
    process.make_patient()
    for stream in (sys.stdout, sys.stderr):
        # What a terminal's encoding does not have, such as `≥`, must not end the command.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _refuse_removed_folder()
        for option in sys.argv[2:]:
            if instead := LEFT_OPTIONS.get((sys.argv[1], option)):
                raise ConfigError(f"{sys.argv[1]} {option} {LEFT_MUST}. {instead}")
        app()
    except TuneSpeedError as error:
        tell(f"error: {error}")
        sys.exit(error.exit_code)
    finally:
        # A last look for garbage takes 20 ms, and seconds after a search. But triton, which torch
        # imports, complains at length about each of its objects that is not taken away.
        if "triton" not in sys.modules:
            gc.freeze()


def _refuse_removed_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the working directory was removed. Change to another folder.") from None
