"""The commands on leaderboards: `best` and `leaderboard`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tune_speed.cli import common
from tune_speed.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_speed.reporting.leaderboard.history import RecordHeld
    from tune_speed.reporting.leaderboard.ranking import Board

BoardFormat = Literal["table", "json", "csv", "markdown", "html"]

Sort = Literal["time", "cost", "energy"]

Kind = Literal["estimate", "certified"]

KindOption = Annotated[
    Kind | None, typer.Option("--kind", help="Only estimates, or only certified results.")
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="FILTER",
        help="Only trials for which this holds, such as 'optimizer=sgd and batch_size>=512'.",
    ),
]
TargetOption = Annotated[
    float | None,
    typer.Option("--target", help="Only boards of this target, where a study has several."),
]

SortOption = Annotated[
    Sort,
    typer.Option(
        "--sort",
        help="Rank by expected time, cost or energy; by cost, all devices are on one board."
        " Default: time, or what the goal of --study says.",
    ),
]


def best(
    study: common.StudyOption = None,
    workload: common.WorkloadOption = None,
    device: common.DeviceOption = None,
    kind: KindOption = None,
    where: WhereOption = None,
    target: TargetOption = None,
    sort: SortOption = "time",
    top: Annotated[int, typer.Option(min=1, help="Rows of each leaderboard.")] = 1,
    export: common.ExportOption = None,
    format_: common.RecipeFormatOption = None,
    plugin: common.PluginOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Show the fastest recipes on record, and write one to a file.

    Example: tune-speed best --study digits_quickstart --export train.py
    """
    from tune_speed.reporting.leaderboard.queries import find_boards
    from tune_speed.tracking.filter.where import where_of
    from tune_speed.tracking.reader.queries import Query

    common.check_export(export, format_)
    only = where_of(where)
    query = Query(study=study, workload=workload, device=device, kind=kind, where=only)
    boards = find_boards(common.store(), query, target=target, top=top, order=sort)
    shown = _boards_in("json" if as_json else "table", boards)
    common.show_parts([shown], piped_width=common.BOARD_WIDTH)
    if export is not None:
        _export(boards, export, format_)
    if not any(row.rank is not None for board in boards for row in board.rows):
        raise typer.Exit(common.NOT_REACHED)


def leaderboard(
    study: common.StudyOption = None,
    workload: common.WorkloadOption = None,
    device: common.DeviceOption = None,
    kind: KindOption = None,
    where: WhereOption = None,
    target: TargetOption = None,
    sort: SortOption = "time",
    top: Annotated[
        int, typer.Option(min=1, help="Rows of each leaderboard; of a history, the latest.")
    ] = 20,
    misses: Annotated[
        bool, typer.Option("--misses", help="Trials that missed the target too, at the end.")
    ] = False,
    best_of: Annotated[
        str | None,
        typer.Option(
            "--best-of",
            metavar="FIELD",
            help="Only the best row of each choice of this parameter, such as `model`.",
        ),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Who held the record when, instead.")
    ] = False,
    format_: Annotated[BoardFormat, typer.Option("--format", help="Form of the output.")] = "table",
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.")] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Show the trials that met the target, fastest first; one board per workload and device.

    Rows whose intervals overlap that of the first of their rank share it: 1=.

    Example: tune-speed leaderboard --workload digits --format markdown
    """
    from tune_speed.reporting.leaderboard.queries import find_boards, find_history
    from tune_speed.tracking.filter.where import where_of
    from tune_speed.tracking.reader.queries import Query

    store = common.store()
    only = where_of(where)
    query = Query(study=study, workload=workload, device=device, kind=kind, where=only)
    form = "json" if as_json else format_
    if history:
        against = {
            "given without --misses: a miss sets no record": misses,
            "given without --best-of: it has records, not choices": best_of is not None,
            "given without --sort: it goes by what is sought": sort != "time",
            "shown as table, json, csv or markdown, not as html": form == "html",
        }
        for must in (must for must, is_given in against.items() if is_given):
            raise ConfigError(f"--history must be {must}.")
        shown = _history_in(form, find_history(store, query, target=target, top=top))
    else:
        how: dict[str, Any] = {"with_misses": misses, "best_of": best_of, "order": sort}
        shown = _boards_in(form, find_boards(store, query, target=target, top=top, **how))
    if out is None:
        common.show_parts([shown], piped_width=common.BOARD_WIDTH)
        return
    common.write_shown(out, shown)


def _boards_in(form: BoardFormat, boards: list["Board"]) -> "str | RenderableType":
    from tune_speed.reporting.leaderboard import tables

    if form == "html":
        from tune_speed.reporting.page.site import boards_page

        return boards_page(boards)
    forms: dict[str, Callable[[list[Board]], str | RenderableType]] = {
        "table": tables.as_renderable,
        "json": tables.as_json,
        "csv": tables.as_csv,
        "markdown": tables.as_markdown,
    }
    return forms[form](boards)


def _history_in(form: BoardFormat, held: list["RecordHeld"]) -> "str | RenderableType":
    from tune_speed.reporting.leaderboard import history, tables

    forms: dict[str, Callable[[list[RecordHeld]], str | RenderableType]] = {
        "table": history.history_renderable,
        "json": tables.as_json,
        "csv": history.history_csv,
        "markdown": history.history_markdown,
    }
    return forms[form](held)


def _export(boards: list["Board"], path: Path, form: common.RecipeFormat | None) -> None:
    from tune_speed.core.comparability import board_key
    from tune_speed.tracking.reader.leaders import find_leaders
    from tune_speed.tracking.reader.queries import Query, find_trial

    with_rows = [board for board in boards if board.rows and board.rows[0].rank is not None]
    # What is certified is known better than what a search found.
    with_rows = [board for board in with_rows if board.kind == "certified"] or with_rows
    if len(with_rows) != 1:
        among = "; ".join(
            f"{board.workload} ({board.workload_hash}, protocol {board.protocol_version}) on"
            f" {board.device}"
            for board in with_rows
        )
        raise ConfigError(
            f"--export needs one leaderboard to take the best from, but got {len(with_rows)}:"
            f" {among or 'none'}. Choose with --study, --workload, --device, --target or --where."
        )
    best, row = with_rows[0].recommended, with_rows[0].rows[0]
    # Of a search, what is recommended: its fastest run was lucky.
    name = row.run_id if best is None else f"{best.study}/{best.trial_id}"
    assert name is not None
    store = common.store()
    found = find_trial(store, name)
    record, run_id = found.record, found.run_id
    # --where may leave out trials of the search, but its cost counts all of them.
    totals = find_leaders(store, Query(study=record.study), top=1).study_totals
    search = totals.get((board_key(record)._replace(kind="estimate"), record.study))
    common.write_recipe(path, record, run_id=run_id, form=form, search=search, known=best)
