"""The command `doctor`."""

from typing import Annotated

import typer

from tune_speed.cli.common import NOT_REACHED, JsonOption, PluginOption, print_rows, say_json


def doctor(
    plugin: PluginOption = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove what killed sessions left, first.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine: versions, devices, memory, disk, caches, Ray and MLflow.

    Example: tune-speed doctor
    """
    from tune_speed.cli.checks import run_checks
    from tune_speed.runtime.temporary import remove_leftovers

    if clean:
        remove_leftovers()
    findings = run_checks()
    if as_json:
        say_json([finding._asdict() for finding in findings])
    else:
        rows = [
            {"check": f.check, "state": "ok" if f.is_ok else "PROBLEM", "found": f.found}
            for f in findings
        ]
        print_rows(rows, title="doctor")
    if not all(finding.is_ok for finding in findings):
        raise typer.Exit(NOT_REACHED)
