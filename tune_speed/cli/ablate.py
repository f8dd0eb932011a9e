"""The command `ablate`: what changes of a recipe do, one by one and together."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli.common import (
    INTERRUPTED,
    DownloadOption,
    Format,
    JsonOption,
    PluginOption,
    SetOption,
    note,
    print_decoding,
    print_listing,
    print_wide,
    say,
)

if TYPE_CHECKING:
    from tune_speed.experiments.ablation.ablate import Ablation
    from tune_speed.experiments.replication.outcome import Outcome


def ablate(
    recipe: Annotated[
        str, typer.Argument(help="A recipe file, a shipped one's name, or an MLflow run id.")
    ],
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
        typer.Option(metavar="FIELD", help="Choose this number anew for each arm: `lr`."),
    ] = None,
    set_: SetOption = None,
    plugin: PluginOption = None,
    download: DownloadOption = False,
    again: Annotated[bool, typer.Option("--again", help="Begin anew where one was begun.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Where the picture goes (.png or .svg).")
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="Form of the output.")] = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Run a recipe with and without changes, in turns, and say what each of them does.

    Every arm runs once with each seed. Given again, the command goes on where it stopped.

    Example: tune-speed ablate best.yaml --axes accumulation_steps=2,precision=bf16 --seeds 3
    """
    overrides = [*(set_ or []), *_overrides(axes, design, seeds, retune)]
    from tune_speed.core.folders import studies_folder
    from tune_speed.experiments.ablation.ablate import run_ablation
    from tune_speed.experiments.ablation.plan import plan_ablation

    plan = plan_ablation(recipe, overrides=overrides, check_data=not download)
    ablation = run_ablation(
        plan,
        folder=studies_folder(),
        again=again,
        download=download,
        on_progress=print_decoding,
        on_line=note,
    )
    _keep(ablation, plot)
    print_ablation(ablation, Format.JSON if as_json else format_)
    if ablation.was_stopped:
        note("stopped; the same command goes on")
        raise typer.Exit(INTERRUPTED)


def _overrides(
    axes: str | None, design: str | None, seeds: int | None, retune: str | None
) -> list[str]:
    """Returns what the options say, as overrides of the file's section `ablate`."""
    from tune_speed.experiments.ablation.axes import parse_axes

    found = [] if axes is None else [f"ablate.axes={json.dumps(parse_axes(axes))}"]
    options = {"design": design, "seeds": seeds, "retune": retune}
    return found + [
        f"ablate.{name}={value}" for name, value in options.items() if value is not None
    ]


def _keep(ablation: "Ablation", plot: Path | None) -> None:
    from tune_speed.api.ablated import keep

    keep(ablation, plot, on_line=note, on_warning=note)


def print_ablation(ablation: "Ablation", form: Format) -> None:
    """Prints what was found."""
    from tune_speed.experiments.ablation import tables

    result = ablation.result
    if form is Format.JSON:
        say(json.dumps(result.model_dump(mode="json"), indent=2, allow_nan=False))
    elif form is Format.TABLE:
        for renderable in tables.as_renderables(result):
            print_wide(renderable)
    else:
        print_listing(tables.csv_rows(result), form, title="arms")
        if result.effects and form is Format.MARKDOWN:
            say("")
            print_listing(tables.effect_rows(result), form, title="effects")


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
    set_: SetOption = None,
    plugin: PluginOption = None,
    download: DownloadOption = False,
    again: Annotated[bool, typer.Option("--again", help="Begin anew where one was begun.")] = False,
    format_: Annotated[Format, typer.Option("--format", help="Form of the output.")] = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment of a source document again, and set its figures beside ours.

    Given again, the command goes on where it stopped.

    Example: tune-speed replicate factorial --profile cpu
    """
    form = Format.JSON if as_json else format_
    if list_ or name is None:
        _print_replications(form)
        return
    from tune_speed.core.folders import studies_folder
    from tune_speed.experiments.replication.replicate import (
        plan_replication,
        run_replication,
        save_outcome,
    )

    overrides = [*(set_ or []), *([] if seeds is None else [f"ablate.seeds={seeds}"])]
    chosen = profile or _profile_here()
    plan = plan_replication(name, profile=chosen, overrides=overrides, check_data=not download)
    done = run_replication(
        plan,
        folder=studies_folder(),
        again=again,
        download=download,
        on_progress=print_decoding,
        on_line=note,
    )
    for ablation in done.ablations:
        _keep(ablation, None)
        if arms:
            print_ablation(ablation, form)
    note(f"wrote {save_outcome(done.outcome, folder=studies_folder(), study=plan.file.name)}")
    _print_outcome(done.outcome, form)
    if done.was_stopped:
        note("stopped; the same command goes on")
        raise typer.Exit(INTERRUPTED)


def _profile_here() -> str:
    from tune_speed.runtime.device import resolve_device

    profile = "full" if resolve_device("auto").type == "cuda" else "cpu"
    note(f"profile {profile}, as there is {'a' if profile == 'full' else 'no'} GPU here")
    return profile


def _print_replications(form: Format) -> None:
    from tune_speed.experiments.replication.shipped import replication_listing

    shown = [
        {
            "items": " ".join(map(str, row["items"])),
            **{field: row[field] for field in ("name", "title", "source")},
            "profiles": " ".join(row["profiles"]),
        }
        for row in replication_listing()
    ]
    print_listing(
        replication_listing() if form is Format.JSON else shown, form, title="replications"
    )


def _print_outcome(found: "Outcome", form: Format) -> None:
    from tune_speed.experiments.replication import table

    if form is Format.JSON:
        say(json.dumps(found.model_dump(mode="json"), indent=2, allow_nan=False))
    elif form is Format.MARKDOWN:
        say(table.markdown(found))
    elif form is Format.CSV:
        print_listing(table.csv_rows(found), form, title="claims")
    else:
        for renderable in table.as_renderables(found):
            print_wide(renderable)
