"""The commands `ablate` and `replicate`: what changes do, and whether published figures hold."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli import common

if TYPE_CHECKING:
    from tune_speed.api.ablated import Ablated
    from tune_speed.experiments.replication.replicate import Outcome


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
        str | None, typer.Option(metavar="FIELD", help="Re-tune this number for each arm: `lr`.")
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
        str | None, typer.Argument(help="A replication, the number of its experiment, or its file.")
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
    from tune_speed.experiments.ablation.ablate import run_ablation
    from tune_speed.experiments.replication.replicate import outcome, plan_replication, save_outcome

    # As an override, after those of `--set`: the option of its own name has the last word.
    overrides = [*(set_ or []), *([] if seeds is None else [f"ablate.seeds={seeds}"])]
    profile = profile or _profile_here()
    plan = plan_replication(name, profile=profile, overrides=overrides, check_data=not download)
    progress, done = common.on_stderr(), dict[str, "Ablated"]()
    for part, planned in plan.parts.items():
        ablation = run_ablation(
            planned,
            folder=studies_folder(),
            part=part,
            again=again,
            download=download,
            on_progress=progress.decoded,
            on_line=progress.line,
        )
        done[part] = save(ablation, None, progress=progress)
        if arms:
            show_ablated(done[part], form)
        if ablation.was_stopped:
            break
    shown = outcome(plan, {part: found.result for part, found in done.items()})
    path = save_outcome(shown, folder=studies_folder(), study=plan.file.name)
    common.note(f"wrote {path}")
    _print_outcome(shown, form)
    if any(found.was_stopped for found in done.values()):
        common.note("stopped; the same command resumes")
        raise typer.Exit(common.INTERRUPTED)


def _print_outcome(found: "Outcome", form: common.Format) -> None:
    from tune_speed.experiments.replication import table

    if form == "json":
        common.say_json(found.model_dump(mode="json"))
    elif form == "markdown":
        common.say(table.markdown(found))
    elif form == "csv":
        common.print_listing(table.csv_rows(found), form, title="claims")
    else:
        common.show_parts(table.as_renderables(found))


def _profile_here() -> str:
    from tune_speed.runtime.device import resolve_device

    profile = "full" if resolve_device("auto").type == "cuda" else "cpu"
    common.note(f"profile {profile}, as there is {'a' if profile == 'full' else 'no'} GPU here")
    return profile


def _print_replications(form: common.Format) -> None:
    from tune_speed.experiments.replication.shipped import replication_listing

    rows = replication_listing()
    if form != "json":
        # A table's cell holds one text.
        names = ("items", "name", "title", "source", "profiles")
        rows = [{name: row[name] for name in names} for row in rows]
        for row in rows:
            row |= {name: " ".join(map(str, row[name])) for name in ("items", "profiles")}
    common.print_listing(rows, form, title="replications")
