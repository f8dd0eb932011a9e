"""The command `init`."""

from pathlib import Path
from typing import Annotated

import typer

from tune_speed.cli import common


def init(
    data: Annotated[
        str,
        typer.Argument(help="A folder with a folder of images a class, or Parquet file or folder."),
    ],
    study: Annotated[
        str | None, typer.Option("--study", help="The study's name; else that of the data.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where to write; else STUDY.yaml.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(min=0, max=1, help="The target; else what a plain run reaches.")
    ] = None,
    probe: Annotated[str, typer.Option(metavar="TIME", help="How long that run may take.")] = "60s",
    replace: Annotated[bool, typer.Option("--replace", help="Replace the file.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Write a first study file for your own images, after a look at them and a short training.

    Example: tune-speed init photos
    """
    from tune_speed.api.first_study import init as write_first_study
    from tune_speed.core.errors import ConfigError
    from tune_speed.study.settings import parse_duration_s

    try:
        probe_s = parse_duration_s(probe)
    except ValueError as error:
        raise ConfigError.of("--probe", str(error), given=probe) from error
    try:
        found = write_first_study(
            data,
            study=study,
            out=out,
            target=target,
            probe_s=probe_s,
            replace=replace,
            progress=common.on_stderr(),
        )
    except KeyboardInterrupt:
        common.note("stopped; nothing was written")
        raise typer.Exit(common.INTERRUPTED) from None
    common.show(found, as_json=as_json)
