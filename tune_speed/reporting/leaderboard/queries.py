"""Leaderboards and record histories of a store, of chosen trials."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.reporting.leaderboard.history import RecordHeld, boards_of, record_history
from tune_speed.reporting.leaderboard.orders import ordered
from tune_speed.reporting.leaderboard.ranking import Board, Row, make_boards
from tune_speed.tracking.filter.where import Where
from tune_speed.tracking.reader.leaders import Leaders, find_leaders
from tune_speed.tracking.reader.matching import find_matching
from tune_speed.tracking.reader.queries import TrackedTrial


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which trials of a store are wanted; None: any."""

    uri: str
    study: str | None = None
    workload: str | None = None
    device: str | None = None
    """Part of the device's name, in whatever case."""
    kind: str | None = None
    where: Where | None = None
    target: float | None = None
    """Value of the target that a board is of."""

    @property
    def of_trial(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in ("study", "workload", "device", "kind")}


def find_boards(
    choice: Choice,
    *,
    top: int,
    with_misses: bool = False,
    best_of: str | None = None,
    order: str = "time",
) -> list[Board]:
    """Returns the boards; reads no more than their leading rows where these are all it takes.

    `order` says by what rows are ranked, see `ordered`. Of each choice that the parameter `best_of`
    had, only the best row is left, with its rank.

    Raises: ServiceError; ConfigError on a filter's field, or a parameter, that no trial has.
    """
    is_whole = with_misses or choice.where is not None
    leaders = _leaders(choice, top=1 if is_whole else top)
    if best_of is not None or order != "time":
        every = find_boards(choice, top=sys.maxsize, with_misses=with_misses, order="time")
        return [_best_of_each(board, best_of, top=top) for board in ordered(every, order)]
    if is_whole:
        boards = _boards_of_all(choice, leaders, top=top, with_misses=with_misses)
    else:
        boards = make_boards(
            ((trial.run_id, trial.record) for trial in leaders.trials),
            top=top,
            totals=leaders.totals,
            study_totals=leaders.study_totals,
            favourites=leaders.favourites,
            range_ends=leaders.range_ends,
        )
    return [board for board in boards if choice.target in (None, board.target)]


def _boards_of_all(choice: Choice, leaders: Leaders, *, top: int, with_misses: bool) -> list[Board]:
    trials = [(trial.run_id, trial.record) for trial in chosen_trials(choice)]
    # Certified trials do not say what the search before them cost.
    has_cost = choice.where is None and choice.kind is not None
    return make_boards(
        trials,
        top=top,
        with_misses=with_misses,
        study_totals=leaders.study_totals if has_cost else None,
        where=choice.where.text if choice.where else "",
        favourites=leaders.favourites,
        range_ends=leaders.range_ends,
    )


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


def find_history(choice: Choice, *, top: int) -> list[RecordHeld]:
    """Returns the latest `top` records of each board as they were set; raises as `find_boards`."""
    found = chosen_trials(choice, only_reached=True)  # A miss sets no record.
    boards = boards_of(record_history(trial.record for trial in found))
    chosen = [board for board in boards if choice.target in (None, board[0].target)]
    return [held for board in chosen for held in board[-top:]]


def chosen_trials(choice: Choice, *, only_reached: bool = False) -> list[TrackedTrial]:
    """Returns all chosen trials, or those of them that met the target; raises as `find_boards`."""
    return find_matching(choice.uri, choice.where, **choice.of_trial, only_reached=only_reached)


def _leaders(choice: Choice, *, top: int) -> Leaders:
    return find_leaders(choice.uri, **choice.of_trial, top=top)
