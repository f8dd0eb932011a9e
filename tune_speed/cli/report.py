"""The command that makes pages: `report`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli.common import JsonOption, StudyArgument, note, say, say_json
from tune_speed.core.errors import ConfigError
from tune_speed.core.text import counted

if TYPE_CHECKING:
    from tune_speed.reporting.study.view import StudyView, ViewedTrial


def report(
    study: StudyArgument,
    html: Annotated[Path, typer.Option(help="Write the page to this file.")] = Path("report.html"),
    png: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write each figure for a slide too.")
    ] = None,
    finalists: Annotated[
        int, typer.Option(min=1, help="Fastest trials whose curves are drawn.")
    ] = 10,
    as_json: JsonOption = False,
) -> None:
    """Write a study as one HTML page: the answer, figures, all trials. It needs no network.

    Works while the study runs; make it again to see more.

    Example: tune-speed report digits_quickstart --html report.html --png figures
    """
    from tune_speed.reporting.page.study_page import study_page
    from tune_speed.reporting.study.reader import read_study
    from tune_speed.runtime.atomic_file import replace_text
    from tune_speed.tracking.store.uri import tracking_uri

    started = time.monotonic()
    view = read_study(tracking_uri(), study, finalists=finalists)
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
        say_json(facts)
        return
    size_mb = html.stat().st_size / 1e6
    if pictures:
        say(f"wrote {png}: {', '.join(path.name for path in pictures)}")
    say(f"wrote {html}: {counted(trials, 'trial')}, {size_mb:.2f} MB, in {took_s:.1f} s")
    say(f"open it in a browser: {html.absolute().as_uri()}")
    if view.is_running:
        note("the study is still running; give the same command again to see more")


def recipe_text(trial: "ViewedTrial") -> str:
    """Returns how to run a trial again: a recipe file, or what its function was called with."""
    from tune_speed.reporting.trials.recipe_export import called_with, recipe_yaml

    try:
        if trial.record.is_own_loop:
            return called_with(trial.record)
        return recipe_yaml(trial.record, run_id=trial.run_id)
    except ConfigError as error:  # Of another version, or of a stranger: the page shows the rest.
        return f"# {error}"


def _draw(view: "StudyView", folder: Path) -> list[Path]:
    """Writes each figure of each part into `folder`; returns the files.

    Raises: StorageError if one cannot be written.
    """
    from tune_speed.reporting.figures import FIGURES, draw_png

    several = len(view.parts) > 1
    places = [
        # Parts are not comparable, so they never share a picture: each has its own, numbered.
        (part, name, folder / (f"{name}-{number}.png" if several else f"{name}.png"))
        for number, part in enumerate(view.parts, start=1)
        for name in FIGURES
    ]
    return [path for part, name, path in places if draw_png(name, part, path)]
