"""The commands on one recipe: `train`, and `profile`, which says where a step's time goes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli import common
from tune_speed.core.text import counted

if TYPE_CHECKING:
    from tune_speed.experiments.profiling.result import ProfileResult


def train(
    recipe: common.RecipeArgument,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with consecutive seeds.")] = 1,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="OTHER", help="Another recipe: train both in turns, and say which is faster."
        ),
    ] = None,
    set_: common.SetOption = None,
    plugin: common.PluginOption = None,
    download: common.DownloadOption = False,
    as_json: common.JsonOption = False,
) -> None:
    """Train one recipe, once or with several seeds; needs neither Ray nor MLflow for a file.

    With --against OTHER both train with the same seeds, and --set applies to both.

    Example: tune-speed train recipe.yaml --seeds 5 --set run.device=cpu
    """
    from tune_speed.api import calls

    found = calls.train(
        recipe,
        seeds=seeds,
        against=against,
        set=set_,
        download=download,
        progress=common.on_stderr(),
    )
    # Ctrl-C in the first run leaves nothing to show.
    if found.runs:
        common.show(found, as_json=as_json)
    if found.was_stopped:
        planned = seeds * (1 if against is None else 2)
        common.note(
            f"stopped; shown are the {len(found.runs)} of {counted(planned, 'run')} that were done"
        )
        raise typer.Exit(common.INTERRUPTED)
    if not found.has_reached:
        raise typer.Exit(common.NOT_REACHED)


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
    format_: common.FormatOption = "table",
    as_json: common.JsonOption = False,
) -> None:
    """Take a recipe's training step apart: where its time goes, against what the device can do.

    The recipe's own loader, model, optimizer and speed-ups run, after a warm-up; steps with borders
    between the phases and steps without take turns. Nothing is trained or stored.

    Example: tune-speed profile recipe.yaml --steps 20 --set batch_size=256 --out profile.png
    """
    from tune_speed.experiments.profiling import output
    from tune_speed.experiments.rerun import load_rerun
    from tune_speed.reporting.plot_style import check_format

    if out is not None:
        # Before the measurement, which a wrong suffix would waste.
        check_format("--out", out)
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
    _print(found, "json" if as_json else format_)


def _print(found: "ProfileResult", form: common.Format) -> None:
    from rich.console import Group

    from tune_speed.experiments.profiling import output

    if form == "json":
        common.say_json(found.model_dump(mode="json"))
    elif form == "table":
        common.show_parts([Group(*output.as_renderables(found))])
    else:
        common.print_listing(output.csv_rows(found), form, title="phases")
        if form == "markdown":
            common.say("")
            common.print_listing(output.rate_rows(found), form, title="rates")
            common.say("\n" + "\n".join(f"- {text}" for text in output.advice_texts(found)))
