"""The commands `ablate` and `replicate`: what changes do, and whether published figures hold."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli import common

if TYPE_CHECKING:
    from tune_speed.api.ablated import Ablated
    from tune_speed.experiments.replication.agreement import Outcome


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
    format_: common.FormatOption = "table",
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
    show_ablated(found, "json" if as_json else format_)
    if found.was_stopped:
        common.note("stopped; the same command resumes")
        raise typer.Exit(common.INTERRUPTED)


def show_ablated(found: "Ablated", form: common.Format) -> None:
    from tune_speed.experiments.ablation import tables

    if form in ("table", "json"):
        common.show(found, as_json=form == "json")
        return
    common.print_listing(tables.csv_rows(found.result), form, title="arms")
    # CSV has the arms alone: effects have other columns, and a CSV file is one table.
    if found.effects and form == "markdown":
        common.say("")
        common.print_listing(tables.effect_rows(found.result), form, title="effects")


def replicate(
    name: Annotated[
        str | None,
        typer.Argument(help="A replication, the number of its experiment, or its file."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say which there are.")] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            help="`full`: as in the source; `cpu`: small enough for a few cores; default: full with"
            " a GPU, else cpu."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each arm.")] = None,
    arms: Annotated[bool, typer.Option("--arms", help="Print the tables of all arms too.")] = False,
    set_: common.SetOption = None,
    plugin: common.PluginOption = None,
    download: common.DownloadOption = False,
    again: common.AgainOption = False,
    format_: common.FormatOption = "table",
    as_json: common.JsonOption = False,
) -> None:
    """Run an experiment of a source document again, and compare its figures with ours.

    Given again, the command resumes where it stopped.

    Example: tune-speed replicate factorial --profile cpu
    """
    form = "json" if as_json else format_
    if list_ or name is None:
        _print_replications(form)
        return
    from tune_speed.api.ablated import save
    from tune_speed.core.folders import studies_folder
    from tune_speed.experiments.replication.replicate import (
        plan_replication,
        run_replication,
        save_outcome,
    )

    # As an override, after those of `--set`: the option of its own name has the last word.
    overrides = [*(set_ or []), *([] if seeds is None else [f"ablate.seeds={seeds}"])]
    plan = plan_replication(
        name, profile=profile or _profile_here(), overrides=overrides, check_data=not download
    )
    progress = common.on_stderr()
    done = run_replication(
        plan,
        folder=studies_folder(),
        again=again,
        download=download,
        on_progress=progress.decoded,
        on_line=progress.line,
    )
    for ablation in done.ablations:
        found = save(ablation, None, progress=progress)
        if arms:
            show_ablated(found, form)
    common.note(
        f"wrote {save_outcome(done.outcome, folder=studies_folder(), study=plan.file.name)}"
    )
    _print_outcome(done.outcome, form)
    if done.was_stopped:
        common.note("stopped; the same command resumes")
        raise typer.Exit(common.INTERRUPTED)


def _profile_here() -> str:
    from tune_speed.runtime.device import resolve_device

    profile = "full" if resolve_device("auto").type == "cuda" else "cpu"
    common.note(f"profile {profile}, as there is {'a' if profile == 'full' else 'no'} GPU here")
    return profile


def _print_replications(form: common.Format) -> None:
    from tune_speed.experiments.replication.shipped import replication_listing

    shown = [
        {
            "items": " ".join(map(str, row["items"])),
            **{field: row[field] for field in ("name", "title", "source")},
            "profiles": " ".join(row["profiles"]),
        }
        for row in replication_listing()
    ]
    # JSON keeps lists as lists; a table's cell holds one text.
    common.print_listing(
        replication_listing() if form == "json" else shown, form, title="replications"
    )


def _print_outcome(found: "Outcome", form: common.Format) -> None:
    from rich.console import Group

    from tune_speed.experiments.replication import table

    if form == "json":
        common.say_json(found.model_dump(mode="json"))
    elif form == "markdown":
        common.say(table.markdown(found))
    elif form == "csv":
        common.print_listing(table.csv_rows(found), form, title="claims")
    else:
        common.show_parts([Group(*table.as_renderables(found))])
