"""Leaderboards in words, and as JSON, CSV or Markdown; `board_table` draws them on a terminal."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tune_speed.reporting.leaderboard.ranking import Board, Row
from tune_speed.reporting.table import Column, Table, escape_markdown

Cell = Callable[[Row], str]
NO_TRIALS = "No trial met its target yet."


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def describe_params(params: Mapping[str, Any]) -> str:
    """Returns `optimizer=sgd lr=0.123 …`: last parts of names where unique, four digits."""
    last_parts = Counter(name.rpartition(".")[2] for name in params)

    def short(name: str) -> str:
        last = name.rpartition(".")[2]
        return last if last_parts[last] == 1 else name

    parts = (
        f"{short(name)}={value:.4g}" if isinstance(value, float) else f"{short(name)}={value}"
        for name, value in params.items()
    )
    return " ".join(parts) or "(nothing searched)"


def time_text(value_s: float | None) -> str:
    """Returns seconds with two decimals; `∞` for None."""
    return "∞" if value_s is None else f"{value_s:.2f}"


def interval_text(value_s: float | None, low_s: float | None, high_s: float | None) -> str:
    """Returns `1.19 (1.18–1.24)`, without brackets where the interval is a point."""
    low, high = time_text(low_s), time_text(high_s)
    return f"{time_text(value_s)} ({low}–{high})" if low_s != high_s else time_text(value_s)


def _expected(row: Row) -> str:
    return interval_text(row.expected_s, row.expected_low_s, row.expected_high_s)


def _median(row: Row) -> str:
    return interval_text(row.time_to_target_s, row.median_low_s, row.median_high_s)


def faster_text(row: Row) -> str:
    """Returns `1.25×, p = 0.02`: how much faster than its rival a certified row is; how sure."""
    if row.rival is None or row.p_value is None:
        return "–"
    factor = "–" if row.speedup is None else f"{row.speedup:.2f}×"
    return f"{factor}, p = {row.p_value:.2g}"


def _faster(row: Row) -> str:
    return faster_text(row) if row.rival is None else f"{faster_text(row)}, {row.rival}"


def _search_cost(row: Row) -> str:
    if row.study_trials is None or row.study_device_s is None:
        return "–"
    return f"{row.study_trials}, {row.study_device_s:.0f} s"


COLUMNS: dict[str, Cell] = {
    "rank": lambda row: row.place,
    "time_to_target_s": lambda row: _number(row.time_to_target_s, 2),
    "median (interval)": _median,
    "expected_s (95 %)": _expected,
    "hits/n": lambda row: f"{row.hits}/{row.n}",
    "final": lambda row: _number(row.final_metric, 4),
    "status": lambda row: row.status,
    "steps": lambda row: str(row.steps),
    "images_per_s": lambda row: _number(row.images_per_s, 0),
    "peak_memory_gib": lambda row: _number(row.peak_memory_gib, 2),
    "timing": lambda row: row.timing,
    "faster than": _faster,
    "search: trials, device": _search_cost,
    "study/trial": lambda row: f"{row.study}/{row.trial_id}",
    "searched": lambda row: describe_params(row.params),
}
"""Leaderboard columns in order, by the names of the records' fields."""


KINDS = {"estimate": "estimates", "certified": "certified"}


def title(board: Board) -> str:
    """Returns what the rows of a board have in common."""
    where = f", where {board.where}" if board.where else ""
    return (
        f"{board.workload}, {KINDS[board.kind]}: {board.goal}, {board.mode}, on"
        f" {board.device}{where}"
    )


def caption(board: Board) -> str:
    """Returns how far the figures can be trusted, what a shared rank is, and what they cost."""
    trust = {
        "estimate": f"Estimates from a search: one seed a row; {_clocks(board)}",
        "certified": "Certified: fresh seeds, test part, alone on the device; expected_s is the"
        " expected time with restarts, with its 95 % interval",
    }[board.kind]
    ranked = sum(row.rank is not None for row in board.rows)
    trials = "trials" if not board.where else "trials that the condition holds for"
    cost = f"{board.tuning_cost_s:.0f} s of training and {board.device_s:.0f} device-seconds"
    return (
        f"{trust}.{_ties(board)} {ranked} shown of {board.reached} that met the target, among"
        f" {board.trials} {trials}, which took {cost}; workload {board.workload_hash[:8]},"
        f" protocol {board.protocol_version}."
    )


def _ties(board: Board) -> str:
    """Returns what intervals and shared ranks of the board mean, in words."""
    kinds = {row.interval_of for row in board.rows if row.rank is not None}
    words = {
        "step time": " Intervals are those of the step time, without the spread over seeds: a lead"
        " may be luck.",
        "none": " Times without an interval tell nothing of the spread over seeds: a lead may be"
        " luck.",
    }
    told = next((text for kind, text in words.items() if kind in kinds), "")
    if not any(row.tied for row in board.rows):
        return told
    return f"{told} Ranks with = are shared: the interval overlaps that of the first of the rank."


def _clocks(board: Board) -> str:
    """Returns what the times are made of, in words."""
    timings = {timing for row in board.rows for timing in row.timing.split(", ")}
    words = {
        "isolated": "steps × isolated step time",
        "exclusive": "seconds alone on the device",
        "shared": "seconds on a SHARED device, slowed by others",
    }
    return ", ".join(words[name] for name in words if name in timings) or "none met the target"


def as_json(boards: Sequence[Board]) -> str:
    """Returns the boards as JSON, figures unrounded."""
    return json.dumps([board.model_dump(mode="json") for board in boards], indent=2)


def as_csv(boards: Sequence[Board]) -> str:
    """Returns one line a row, the board's fields first; the searched parameters are JSON."""
    names = [*(name for name in Board.model_fields if name != "rows"), *Row.model_fields]
    rows = [
        {**board.model_dump(mode="json"), **row.model_dump(mode="json")}
        for board in boards
        for row in board.rows
    ]
    texts = [{**row, "params": json.dumps(row["params"], sort_keys=True)} for row in rows]
    return Table(map(Column, names), ([row[name] for name in names] for row in texts)).csv()


def as_markdown(boards: Sequence[Board]) -> str:
    """Returns a GitHub table for each board."""
    return "\n".join(_markdown(board) for board in boards)


def _markdown(board: Board) -> str:
    columns = {name: [cell(row) for row in board.rows] for name, cell in COLUMNS.items()}
    table = Table.of_columns(columns).markdown()
    parts = (f"**{escape_markdown(title(board))}**", "", table, "", escape_markdown(caption(board)))
    return "\n".join([*parts, ""])
