"""The command `replicate`: published experiments run again."""

from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli import common
from tune_speed.cli.ablate import show_ablated

if TYPE_CHECKING:
    from tune_speed.experiments.replication.agreement import Outcome


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
    format_: common.FormatOption = common.Format.TABLE,
    as_json: common.JsonOption = False,
) -> None:
    """Run an experiment of a source document again, and compare its figures with ours.

    Given again, the command resumes where it stopped.

    Example: tune-speed replicate factorial --profile cpu
    """
    form = common.Format.JSON if as_json else format_
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
        replication_listing() if form is common.Format.JSON else shown, form, title="replications"
    )


def _print_outcome(found: "Outcome", form: common.Format) -> None:
    from rich.console import Group

    from tune_speed.experiments.replication import table

    if form is common.Format.JSON:
        common.say_json(found.model_dump(mode="json"))
    elif form is common.Format.MARKDOWN:
        common.say(table.markdown(found))
    elif form is common.Format.CSV:
        common.print_listing(table.csv_rows(found), form, title="claims")
    else:
        common.show_parts([Group(*table.as_renderables(found))])
