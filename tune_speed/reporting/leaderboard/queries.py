"""Leaderboards and record histories of a store, of chosen trials."""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tune_speed.core.comparability import Totals, sum_of
from tune_speed.core.config import canonical_hash, did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.core.prices import prices_file
from tune_speed.reporting.leaderboard.history import RecordHeld, boards_of, record_history
from tune_speed.reporting.leaderboard.ranking import Board, Row, make_boards, with_ranks
from tune_speed.tracking.reader.leaders import find_leaders
from tune_speed.tracking.reader.queries import ANY, Query, find_trials
from tune_speed.tracking.store.store import Store

FIELDS: Mapping[str, str] = {"cost": "expected_cost", "energy": "expected_energy_j"}
"""Of a row, by what boards are ranked."""
_UNKNOWN = {
    "energy": "--sort energy must have trials whose energy was measured, but none here was: their"
    " devices have no counter that can be read (see `tune-speed doctor`), or others were"
    " on them. Try --sort cost.",
    "cost": "--sort cost must have the price of a device, but none is known. Write a line such as"
    " `{device}: 1.20` into {file}.",
}


def ordered(boards: Sequence[Board], order: str) -> list[Board]:
    """Returns whole boards with their rows ranked so; those of `cost` hold all types of device.

    A row's interval is that of its time; rows of which nothing is known come last, without a rank.
    Boards of the best metric within a time stay as they are.

    Raises: ConfigError if none is known of any row.
    """
    asked = [board for board in boards if board.within_s is None]
    if order == "time" or not asked:
        return list(boards)
    others, boards = [board for board in boards if board.within_s is not None], asked
    rows = [row for board in boards for row in board.rows]
    if rows and all(getattr(row, FIELDS[order]) is None for row in rows):
        raise ConfigError(_UNKNOWN[order].format(device=rows[0].device_type, file=prices_file()))
    found = _joined(boards) if order == "cost" else boards
    return [*(_ranked_by(board, order) for board in found), *others]


def _joined(boards: Iterable[Board]) -> list[Board]:
    groups: dict[tuple[Any, ...], list[Board]] = defaultdict(list)
    for board in boards:
        groups[board.key._replace(device="")].append(board)
    return [group[0] if len(group) == 1 else _one_of(group) for group in groups.values()]


def _one_of(boards: Sequence[Board]) -> Board:
    sums = sum_of(Totals(**{n: getattr(b, n) for n in Totals.model_fields}) for b in boards)
    rows = [row for board in boards for row in board.rows]
    alone_s = {_but_devices(row): row.expected_s for row in rows if row.num_devices == 1}
    scaled = [row.model_copy(update={"scaling": _scaling(row, alone_s)}) for row in rows]
    device = ", ".join(board.device for board in boards)
    changes = {
        "device": device,
        "rows": tuple(scaled),
        "recommended": None,  # What a search recommends is so on its own clock.
        "range_ends": {s: said for board in boards for s, said in board.range_ends.items()},
    }
    return boards[0].model_copy(update={**sums.model_dump(), **changes})


def _but_devices(row: Row) -> str:
    params = {name: value for name, value in row.params.items() if name != "devices"}
    return canonical_hash([row.device_type, params])


def _scaling(row: Row, alone_s: Mapping[str, float | None]) -> float | None:
    """Returns T₁ / (N·Tₙ) of N devices, where the same was run on one of them."""
    one_s = alone_s.get(_but_devices(row))
    if row.num_devices == 1 or not one_s or not row.expected_s:
        return None
    return one_s / (row.num_devices * row.expected_s)


def _ranked_by(board: Board, order: str) -> Board:
    def value(row: Row) -> float:
        known = getattr(row, FIELDS[order])
        return math.inf if known is None or row.rank is None else known

    def end(row: Row, end_s: float | None) -> float:
        return math.inf if end_s is None else value(row) * end_s / (row.expected_s or math.inf)

    rows = sorted(board.rows, key=value)
    known = [row for row in rows if math.isfinite(value(row))]
    ends = [(end(row, row.expected_low_s), end(row, row.expected_high_s)) for row in known]
    ranked = with_ranks(known, ends)
    others = [row.model_copy(update={"rank": None, "tied": False}) for row in rows[len(known) :]]
    return board.model_copy(update={"order": order, "rows": (*ranked, *others)})


def find_boards(
    store: Store,
    query: Query = ANY,
    *,
    target: float | None = None,
    top: int,
    with_misses: bool = False,
    best_of: str | None = None,
    order: str = "time",
) -> list[Board]:
    """Returns the boards; reads no more than their leading rows where these are all it takes.

    `order`: see `ordered`. Of each choice of the parameter `best_of` the best row is left.

    Raises: ServiceError; ConfigError on a filter's field, or a parameter, that no trial has.
    """
    if best_of is not None or order != "time":
        every = find_boards(store, query, target=target, top=sys.maxsize, with_misses=with_misses)
        return [_best_of_each(board, best_of, top=top) for board in ordered(every, order)]
    where = query.where
    is_whole = with_misses or where is not None
    leaders = find_leaders(store, query, top=1 if is_whole else top)
    # Certified trials do not say what the search before them cost.
    has_cost = not is_whole or (where is None and query.kind is not None)
    boards = make_boards(
        ((t.run_id, t.record) for t in (find_trials(store, query) if is_whole else leaders.trials)),
        top=top,
        with_misses=with_misses,
        totals=None if is_whole else leaders.totals,
        study_totals=leaders.study_totals if has_cost else None,
        where=where.text if where else "",
        favourites=leaders.favourites,
        range_ends=leaders.range_ends,
    )
    return [board for board in boards if target in (None, board.target)]


def _best_of_each(board: Board, name: str | None, *, top: int) -> Board:
    if name is None:
        return board.model_copy(update={"rows": board.rows[:top]})
    first: dict[tuple[tuple[str, Any], ...], Row] = {}
    for row in board.rows:
        first.setdefault(choices_of(row.params, name), row)
    if first and not any(first):
        names = dict.fromkeys(
            k for row in board.rows for k, v in row.params.items() if _is_choice(v)
        )
        there = did_you_mean(name, names) or f". There are: {', '.join(names) or 'none'}."
        raise ConfigError(
            f"--best-of must name a choice that was searched, but got {name!r}{there}"
        )
    return board.model_copy(update={"rows": tuple(first.values())[:top]})


def choices_of(params: Mapping[str, Any], name: str) -> tuple[tuple[str, Any], ...]:
    """Returns the choice made for a parameter, and those below it: of `model`, `timm` and which."""
    of_it = ((key, v) for key, v in params.items() if key == name or key.startswith(f"{name}."))
    return tuple((key, value) for key, value in of_it if _is_choice(value))


def _is_choice(value: Any) -> bool:
    return isinstance(value, str | bool)


def find_history(
    store: Store, query: Query = ANY, *, target: float | None = None, top: int
) -> list[RecordHeld]:
    """Returns the latest `top` records of each board as they were set; raises as `find_boards`."""
    # A miss sets no record.
    found = find_trials(store, replace(query, only_reached=True))
    boards = boards_of(record_history(trial.record for trial in found))
    chosen = [board for board in boards if target in (None, board[0].target)]
    return [held for board in chosen for held in board[-top:]]
