"""A study's trials as a terminal table, or as rows of a listing."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tune_speed.core.comparability import board_key
from tune_speed.core.records import TrialRecord
from tune_speed.core.text import printable
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.reporting.table import Table, named_lines
from tune_speed.reporting.trials.comparison import markdown_of
from tune_speed.tracking.columns import COLUMNS, values_of

Trial = tuple[str, TrialRecord]
"""A run id with its record."""

FIGURES = ("status", "time_to_target_s", "final_metric", "hits", "n", "steps")
SPEED = ("step_time_ms", "images_per_s", "peak_memory_gib")


def as_renderable(trials: Sequence[Trial]) -> RenderableType:
    """Returns a table for each board, and below it what each trial chose.

    Args:
        trials: those of a board one after the other.
    """
    if not trials:
        return Text("No finished trial of the study fits.")
    parts: list[RenderableType] = []
    for key, group in groupby(trials, key=lambda trial: board_key(trial[1])):
        board = list(group)
        kind = {"estimate": "estimates"}.get(key.kind, key.kind)
        heading = f"{key.workload}, {kind}, on {key.device}; protocol {key.protocol_version}"
        figures = [name for name in FIGURES if name not in ("hits", "n") or kind == "certified"]
        shown = {name: COLUMNS[name] for name in ("trial_id", *figures, *SPEED)}
        columns = {
            column.heading or name: [column.text(column.value(record)) for _, record in board]
            for name, column in shown.items()
        } | {"run": [run_id[:8] for run_id, _ in board]}
        table = Table.of_columns(columns, left=("trial", "status", "run"))
        chosen = named_lines((r.trial_id, describe_params(r.params)) for _, r in board)
        parts += [Text(printable(heading), style="italic"), table, Text(), chosen, Text()]
    return Group(*parts)


def machine_row(trial: Trial) -> dict[str, Any]:
    """Returns all result fields of a trial, unrounded, and what the search chose."""
    run_id, record = trial
    return {"run_id": run_id, **values_of(record), "params": record.params}


def csv_row(trial: Trial) -> dict[str, Any]:
    """Returns the same with what the search chose as JSON."""
    return {**machine_row(trial), "params": json.dumps(trial[1].params)}


def markdown_row(trial: Trial) -> dict[str, Any]:
    """Returns the main figures of a trial as Markdown."""
    run_id, record = trial
    names = ("trial_id", "kind", *FIGURES, *SPEED, "device")
    fields: Mapping[str, Any] = values_of(record)
    chosen = {"searched": describe_params(record.params), "run_id": run_id}
    cells = {**{name: fields[name] for name in names}, **chosen}
    return {name: markdown_of(value) for name, value in cells.items()}
