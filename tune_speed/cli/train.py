"""The command `train`."""

from typing import Annotated

import typer

from tune_speed.cli import common
from tune_speed.core.text import counted


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
