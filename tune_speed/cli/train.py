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
    save: common.SaveOption = None,
    set_: common.SetOption = None,
    plugin: common.PluginOption = None,
    download: common.DownloadOption = False,
    as_json: common.JsonOption = False,
) -> None:
    """Train one recipe, once or with several seeds; needs neither Ray nor MLflow for a file.

    With --against OTHER both train with the same seeds, and --set applies to both. --save FILE
    keeps the network of the run with the best final metric.

    Example: tune-speed train recipe.yaml --seeds 5 --set run.device=cpu
    """
    from tune_speed.api import calls

    found = calls.train(
        recipe,
        seeds=seeds,
        against=against,
        save=save,
        set=set_,
        download=download,
        progress=common.on_stderr(),
    )
    # Ctrl-C in the first run leaves nothing to show.
    if found.runs:
        common.show(found, as_json=as_json)
    if save is not None:
        common.note_saved(save, is_saved=bool(getattr(found, "saved", None)))
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
            min=1, max=1000, help="Steps that are recorded; default: as many as take a second."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="auto, cpu, cuda or cuda:1; default: the file's `run.device`."),
    ] = None,
    set_: common.SetOption = None,
    plugin: common.PluginOption = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Where a Chrome trace of these steps goes (.json), for ui.perfetto.dev."),
    ] = None,
    download: common.DownloadOption = False,
    format_: common.FormatOption = "table",
    as_json: common.JsonOption = False,
) -> None:
    """Take a recipe's training step apart: where its time goes, against what the device can do.

    The recipe's own loader, model, optimizer and speed-ups run, after a warm-up: steps are timed as
    they run, and then recorded by torch.profiler. Nothing is trained or stored.

    Example: tune-speed profile recipe.yaml --set batch_size=256 --trace trace.json
    """
    from tune_speed.experiments.rerun import load_rerun

    overrides = [*(set_ or []), *([] if device is None else [f"run.device={device}"])]
    file = load_rerun(recipe, overrides=overrides, check_data=not download)
    from tune_speed.experiments.profiling.profile import profile_recipe

    progress = common.on_stderr()
    found = profile_recipe(
        file,
        steps=steps,
        trace=trace,
        download=download,
        on_progress=progress.decoded,
        on_line=progress.line,
    )
    if found is None:
        common.note("stopped; nothing was found yet")
        raise typer.Exit(common.INTERRUPTED)
    if trace is not None:
        common.note(f"wrote {trace}")
    _print(found, "json" if as_json else format_)


def _print(found: "ProfileResult", form: common.Format) -> None:
    from rich.console import Group

    from tune_speed.experiments.profiling import output

    if form == "json":
        common.say_json(found.model_dump(mode="json"))
    elif form == "table":
        common.show_parts([Group(*output.as_renderables(found))])
    else:
        common.print_listing(output.phase_rows(found), form, title="phases")
        if form == "markdown":
            common.say("\n" + "\n".join(f"- {text}" for text in output.advice_texts(found)))
