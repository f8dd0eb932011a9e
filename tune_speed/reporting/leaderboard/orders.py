"""Boards by cost or energy in place of time; by cost, results of several types of device meet."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tune_speed.core.comparability import Totals, sum_of
from tune_speed.core.config import canonical_hash
from tune_speed.core.errors import ConfigError
from tune_speed.core.prices import prices_file
from tune_speed.reporting.leaderboard.ranking import Board, Row, shared_ranks

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

    Each row has its own clock: it is money that is compared. A row's interval is that of its time.
    Rows of which cost or energy is not known come last, without a rank. Boards of the best metric
    within a time stay as they are: the cheapest is not what they ask for.

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
    """Returns one board for all devices of what is the same otherwise."""
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
    ranked = [
        row.model_copy(update=place.model_dump())
        for row, place in zip(known, shared_ranks(ends), strict=True)
    ]
    others = [row.model_copy(update={"rank": None, "tied": False}) for row in rows[len(known) :]]
    return board.model_copy(update={"order": order, "rows": (*ranked, *others)})
