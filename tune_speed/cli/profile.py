"""The command `profile`: where a step's time goes, and what to change."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli.common import (
    INTERRUPTED,
    DownloadOption,
    Format,
    FormatOption,
    JsonOption,
    PluginOption,
    RecipeArgument,
    SetOption,
    note,
    on_stderr,
    print_listing,
    say,
    say_json,
    show_parts,
)

if TYPE_CHECKING:
    from tune_speed.experiments.profiling.result import ProfileResult


def profile(
    recipe: RecipeArgument,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps with borders between phases, and as many without; default: 4 s each."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu, cuda or cuda:1; default: the file's `run.device`."),
    ] = None,
    set_: SetOption = None,
    plugin: PluginOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Where a picture goes (.png, .svg or .pdf).")
    ] = None,
    download: DownloadOption = False,
    format_: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Take a recipe's training step apart: where its time goes, against what the device can do.

    The recipe's own loader, model, optimizer and speed-ups run, after a warm-up; steps with borders
    between the phases and steps without take turns. Nothing is trained or stored.

    Example: tune-speed profile recipe.yaml --steps 20 --set batch_size=256 --out profile.png
    """
    from tune_speed.experiments.profiling import picture
    from tune_speed.experiments.rerun import load_rerun

    if out is not None:
        # Before the measurement, which a wrong suffix would waste.
        picture.check_format(out)
    overrides = [*(set_ or []), *([] if device is None else [f"run.device={device}"])]
    file = load_rerun(recipe, overrides=overrides, check_data=not download)
    from tune_speed.experiments.profiling.profile import profile_recipe

    progress = on_stderr()
    found = profile_recipe(
        file,
        steps=steps,
        download=download,
        on_progress=progress.decoded,
        on_line=progress.line,
    )
    if found is None:
        note("stopped; nothing was found yet")
        raise typer.Exit(INTERRUPTED)
    if out is not None:
        picture.plot_profile(found, out)
        note(f"wrote {out}")
    _print(found, Format.JSON if as_json else format_)


def _print(found: "ProfileResult", form: Format) -> None:
    from rich.console import Group

    from tune_speed.experiments.profiling import rows

    if form is Format.JSON:
        say_json(found.model_dump(mode="json"))
    elif form is Format.TABLE:
        show_parts([Group(*rows.as_renderables(found))])
    else:
        print_listing(rows.csv_rows(found), form, title="phases")
        if form is Format.MARKDOWN:
            say("")
            print_listing(rows.rate_rows(found), form, title="rates")
            say("\n" + "\n".join(f"- {text}" for text in rows.advice_texts(found)))
