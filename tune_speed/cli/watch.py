"""The commands that show studies: `watch`, `forecast` and `serve` while they run, and `report`."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tune_speed.cli import common
from tune_speed.core.errors import ConfigError
from tune_speed.core.text import counted

if TYPE_CHECKING:
    from tune_speed.reporting.study.view import StudyView, ViewedTrial


def watch(
    study: common.StudyArgument,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Show a study while it is searched, from any shell; ends when its search ends.

    Reads MLflow alone. Ctrl-C ends watching (exit code 130), not the search. Piped, it prints a
    line for each change; with --json an object for each look.

    Example: tune-speed watch digits_quickstart
    """
    from tune_speed.reporting.study.reader import StudyReader
    from tune_speed.reporting.table import PlainConsole
    from tune_speed.reporting.watch import loop, screen, status

    try:
        reader = StudyReader(common.store(), study)
        if once:
            seen = status.glance(reader.read(with_boards=False))
            if as_json:
                common.say_json(status.as_dict(seen))
            else:
                common.show_parts([screen.screen(seen)])
        elif as_json:
            loop.watch(reader, loop.Json(), interval_s=interval)
        # Only a terminal can be redrawn; piped, each change is a line.
        elif sys.stdout.isatty():
            with loop.Screen(PlainConsole()) as shown:
                loop.watch(reader, shown, interval_s=interval)
        else:
            loop.watch(reader, loop.Lines(PlainConsole()), interval_s=interval)
    except KeyboardInterrupt:
        common.note("stopped watching; the search is not touched")
        raise typer.Exit(common.INTERRUPTED) from None


def forecast(
    study: common.StudyArgument,
    target: Annotated[
        float | None, typer.Option(help="Another value of the target's metric.")
    ] = None,
    time_budget: Annotated[
        str | None,
        typer.Option(help="Search on for this long; default: what is left, else as long again."),
    ] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Forecast a search: the chance to meet a target, and the best one by the budget left.

    Reads MLflow alone, while the study is searched or afterwards.

    Example: tune-speed forecast digits_quickstart --target 0.98
    """
    from tune_speed.api.forecasted import Forecasted

    found = Forecasted.of(common.store(), study, target=target, time_budget=time_budget)
    common.say_json(found.as_dict()) if as_json else common.show_parts(found.parts())


def serve(
    host: Annotated[
        str, typer.Option(help="Listen here; other than loopback, viewers need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Listen here; 0: any.")] = 8420,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="No buttons that steer searches.")
    ] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Show all studies in a browser while they are searched. Ctrl-C ends it (exit code 130).

    Reads MLflow; buttons do what `tune-speed try` and `steer` do, for searches whose folder is
    here. The token is $TUNE_SPEED_TOKEN, or made anew.

    Example: tune-speed serve
    """
    from tune_speed.reporting.server import run
    from tune_speed.reporting.server.helm import Helm
    from tune_speed.tuning.driver import control

    def send(study: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return control.send(study, request).as_dict()

    def announce(address: str) -> None:
        if as_json:
            common.say_json({"url": address})
        else:
            common.say(f"open it in a browser: {address}")
        # Nothing more is printed there, and a pipe would wait for more.
        sys.stdout.flush()
        common.note("Ctrl-C ends it")

    try:
        run.serve(
            common.store(),
            host=host,
            port=port,
            recipe_yaml=recipe_text,
            announce=announce,
            helm=None if read_only else Helm(look=control.outlook, send=send),
        )
    except KeyboardInterrupt:
        common.note("stopped serving; searches are not touched")
        raise typer.Exit(common.INTERRUPTED) from None


def report(
    study: common.StudyArgument,
    html: Annotated[Path, typer.Option(help="Write the page to this file.")] = Path("report.html"),
    png: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write each figure for a slide too.")
    ] = None,
    finalists: Annotated[
        int, typer.Option(min=1, help="Fastest trials whose curves are drawn.")
    ] = 10,
    as_json: common.JsonOption = False,
) -> None:
    """Write a study as one HTML page: the answer, figures, all trials. It needs no network.

    Works while the study runs; make it again to see more.

    Example: tune-speed report digits_quickstart --html report.html --png figures
    """
    from tune_speed.reporting.page.site import study_page
    from tune_speed.reporting.study.reader import read_study
    from tune_speed.runtime.atomic_file import replace_text

    started = time.monotonic()
    view = read_study(common.store(), study, finalists=finalists)
    text = study_page(view, recipe_yaml=recipe_text)
    # A browser may reload the page while a running study's report is made again.
    replace_text(html, text, hint="name another one with --html")
    pictures = [] if png is None else _draw(view, png)
    took_s = time.monotonic() - started
    trials = len(view.trials) + len(view.certified)
    if as_json:
        facts = {
            "path": str(html),
            "bytes": html.stat().st_size,
            "trials": trials,
            "seconds": round(took_s, 3),
            "png": [str(path) for path in pictures],
            "is_running": view.is_running,
        }
        common.say_json(facts)
        return
    size_mb = html.stat().st_size / 1e6
    if pictures:
        common.say(f"wrote {png}: {', '.join(path.name for path in pictures)}")
    common.say(f"wrote {html}: {counted(trials, 'trial')}, {size_mb:.2f} MB, in {took_s:.1f} s")
    common.say(f"open it in a browser: {html.absolute().as_uri()}")
    if view.is_running:
        common.note("the study is still running; give the same command again to see more")


def recipe_text(trial: "ViewedTrial") -> str:
    from tune_speed.reporting.trials.recipe_export import called_with, recipe_yaml

    try:
        if trial.record.is_own_loop:
            return called_with(trial.record)
        return recipe_yaml(trial.record, run_id=trial.run_id)
    except ConfigError as error:  # Of another version, or of a stranger: the page shows the rest.
        return f"# {error}"


def _draw(view: "StudyView", folder: Path) -> list[Path]:
    from tune_speed.reporting.figures import FIGURES, draw_png

    several = len(view.parts) > 1
    places = [
        # Parts are not comparable, so they never share a picture: each has its own, numbered.
        (part, name, folder / (f"{name}-{number}.png" if several else f"{name}.png"))
        for number, part in enumerate(view.parts, start=1)
        for name in FIGURES
    ]
    return [path for part, name, path in places if draw_png(name, part, path)]
