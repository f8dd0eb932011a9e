"""The command `profile`: where a step's time goes, and what to change."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli import common

if TYPE_CHECKING:
    from tune_speed.experiments.profiling.result import ProfileResult


def profile(
    recipe: common.RecipeArgument,
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
    set_: common.SetOption = None,
    plugin: common.PluginOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Where a picture goes (.png, .svg or .pdf).")
    ] = None,
    download: common.DownloadOption = False,
    format_: common.FormatOption = common.Format.TABLE,
    as_json: common.JsonOption = False,
) -> None:
    """Take a recipe's training step apart: where its time goes, against what the device can do.

    The recipe's own loader, model, optimizer and speed-ups run, after a warm-up; steps with borders
    between the phases and steps without take turns. Nothing is trained or stored.

    Example: tune-speed profile recipe.yaml --steps 20 --set batch_size=256 --out profile.png
    """
    from tune_speed.experiments.profiling import output
    from tune_speed.experiments.rerun import load_rerun

    if out is not None:
        # Before the measurement, which a wrong suffix would waste.
        output.check_format(out)
    overrides = [*(set_ or []), *([] if device is None else [f"run.device={device}"])]
    file = load_rerun(recipe, overrides=overrides, check_data=not download)
    from tune_speed.experiments.profiling.profile import profile_recipe

    progress = common.on_stderr()
    found = profile_recipe(
        file,
        steps=steps,
        download=download,
        on_progress=progress.decoded,
        on_line=progress.line,
    )
    if found is None:
        common.note("stopped; nothing was found yet")
        raise typer.Exit(common.INTERRUPTED)
    if out is not None:
        output.plot_profile(found, out)
        common.note(f"wrote {out}")
    _print(found, common.Format.JSON if as_json else format_)


def _print(found: "ProfileResult", form: common.Format) -> None:
    from rich.console import Group

    from tune_speed.experiments.profiling import output

    if form is common.Format.JSON:
        common.say_json(found.model_dump(mode="json"))
    elif form is common.Format.TABLE:
        common.show_parts([Group(*output.as_renderables(found))])
    else:
        common.print_listing(output.csv_rows(found), form, title="phases")
        if form is common.Format.MARKDOWN:
            common.say("")
            common.print_listing(output.rate_rows(found), form, title="rates")
            common.say("\n" + "\n".join(f"- {text}" for text in output.advice_texts(found)))
