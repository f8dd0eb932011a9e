"""The commands on leaderboards: `best` and `leaderboard`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_speed.cli_common import (
    NOT_REACHED,
    DeviceOption,
    Format,
    JsonOption,
    StudyOption,
    WorkloadOption,
    note,
    print_boards,
    write_text,
)
from tune_speed.errors import ConfigError

if TYPE_CHECKING:
    from tune_speed.leaderboard import Board


def best(
    study: StudyOption = None,
    workload: WorkloadOption = None,
    device: DeviceOption = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of each leaderboard.")] = 1,
    export: Annotated[
        Path | None, typer.Option(help="Write the fastest recipe to this file, for `train`.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the fastest recipes on record, and write one to a file.

    Example: tune-speed best --study digits_quickstart --export recipe.yaml
    """
    boards = _boards(study, workload, device, top)
    print_boards(boards, Format.JSON if as_json else Format.TABLE)
    if export is not None:
        _export(boards, export)
    if not any(board.rows for board in boards):
        raise typer.Exit(NOT_REACHED)


def leaderboard(
    study: StudyOption = None,
    workload: WorkloadOption = None,
    device: DeviceOption = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of each leaderboard.")] = 20,
    format_: Annotated[Format, typer.Option("--format", help="Form of the output.")] = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Show the trials that met the target, fastest first; one board per workload and device.

    Example: tune-speed leaderboard --workload digits --format markdown
    """
    boards = _boards(study, workload, device, top)
    print_boards(boards, Format.JSON if as_json else format_)


def _boards(study: str | None, workload: str | None, device: str | None, top: int) -> list["Board"]:
    from tune_speed.leaderboard import make_boards
    from tune_speed.tracking.queries import find_trials
    from tune_speed.tracking.uri import tracking_uri

    found = find_trials(tracking_uri(), study=study, workload=workload, device=device)
    return make_boards(((trial.run_id, trial.record) for trial in found), top=top)


def _export(boards: list["Board"], path: Path) -> None:
    from tune_speed.export import recipe_yaml
    from tune_speed.tracking.queries import find_trial
    from tune_speed.tracking.uri import tracking_uri

    with_rows = [board for board in boards if board.rows]
    # What is certified is known better than what a search found.
    with_rows = [board for board in with_rows if board.kind == "certified"] or with_rows
    if len(with_rows) != 1:
        among = "; ".join(f"{board.workload} on {board.device}" for board in with_rows) or "none"
        raise ConfigError(
            f"--export needs one leaderboard to take the best from, but got {len(with_rows)}:"
            f" {among}. Choose with --study, --workload or --device."
        )
    run_id = with_rows[0].rows[0].run_id
    assert run_id is not None
    tracked = find_trial(tracking_uri(), run_id)
    write_text(path, recipe_yaml(tracked.record, run_id=tracked.run_id))
    note(f"wrote {path}; train it with: tune-speed train {path}")
