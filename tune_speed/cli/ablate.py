"""The command `ablate`: what changes of a recipe do, one by one and together."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli import common

if TYPE_CHECKING:
    from tune_speed.api.ablated import Ablated


def ablate(
    recipe: common.RecipeArgument,
    axes: Annotated[
        str | None,
        typer.Option(
            metavar="CHANGES",
            help="What is changed: `accumulation_steps=2,batch_size=32|64,loader.pin_memory=true`;"
            " default: the file's `ablate.axes`.",
        ),
    ] = None,
    design: Annotated[
        str | None,
        typer.Option(
            help="one-at-a-time, leave-one-out, factorial, stacking or cumulative;"
            " default: the file's, else one-at-a-time."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each arm; default 5.")] = None,
    retune: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Re-tune this number for each arm: `lr`."),
    ] = None,
    set_: common.SetOption = None,
    plugin: common.PluginOption = None,
    download: common.DownloadOption = False,
    again: common.AgainOption = False,
    plot: Annotated[
        Path | None, typer.Option(help="Where the picture goes (.png or .svg).")
    ] = None,
    format_: common.FormatOption = common.Format.TABLE,
    as_json: common.JsonOption = False,
) -> None:
    """Run a recipe with and without changes, in turns, and say what each of them does.

    Every arm runs once with each seed. Given again, the command resumes where it stopped.

    Example: tune-speed ablate best.yaml --axes accumulation_steps=2,precision=bf16 --seeds 3
    """
    from tune_speed.api import calls

    found = calls.ablate(
        recipe,
        axes=axes,
        design=design,
        seeds=seeds,
        retune=retune,
        set=set_,
        download=download,
        again=again,
        plot=plot,
        progress=common.on_stderr(),
    )
    show_ablated(found, common.Format.JSON if as_json else format_)
    if found.was_stopped:
        common.note("stopped; the same command resumes")
        raise typer.Exit(common.INTERRUPTED)


def show_ablated(found: "Ablated", form: common.Format) -> None:
    """Prints arms and effects on stdout."""
    from tune_speed.experiments.ablation import tables

    if form in (common.Format.TABLE, common.Format.JSON):
        common.show(found, as_json=form is common.Format.JSON)
        return
    common.print_listing(tables.csv_rows(found.result), form, title="arms")
    # CSV has the arms alone: effects have other columns, and a CSV file is one table.
    if found.effects and form is common.Format.MARKDOWN:
        common.say("")
        common.print_listing(tables.effect_rows(found.result), form, title="effects")
