"""Leaderboards and record histories of a store, of chosen trials."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import TrialRecord
from tune_speed.reporting.leaderboard.history import RecordHeld, boards_of, record_history
from tune_speed.reporting.leaderboard.ranking import Board, make_boards
from tune_speed.tracking.filter.fields import choice_of, settings_of
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

    @property
    def of_trial(self) -> dict[str, Any]:
        """What a trial must be, other than `where`."""
        return {n: getattr(self, n) for n in ("study", "workload", "device", "kind")}


def find_boards(
    choice: Choice, *, top: int, with_misses: bool = False, best_per: str | None = None
) -> list[Board]:
    """Returns the boards; reads no more than their leading rows where these are all it takes.

    For `best_per` see `make_boards`.

    Raises: ServiceError; ConfigError on a filter's field, or a `best_per`, that no trial has.
    """
    if with_misses or best_per is not None or choice.where is not None:
        trials = [(trial.run_id, trial.record) for trial in chosen_trials(choice)]
        if best_per is not None:
            _check_field(best_per, trials)
        leaders = _leaders(choice, top=1)
        # Certified trials do not say what the search before them cost.
        has_cost = choice.where is None and choice.kind is not None
        return make_boards(
            trials,
            top=top,
            with_misses=with_misses,
            study_totals=leaders.study_totals if has_cost else None,
            where=choice.where.text if choice.where else "",
            favourites=leaders.favourites,
            best_per=best_per,
        )
    leaders = _leaders(choice, top=top)
    return make_boards(
        ((trial.run_id, trial.record) for trial in leaders.trials),
        top=top,
        totals=leaders.totals,
        study_totals=leaders.study_totals,
        favourites=leaders.favourites,
    )


def _check_field(field: str, trials: Sequence[tuple[str | None, TrialRecord]]) -> None:
    if not trials or any(choice_of(record, field) for _, record in trials):
        return
    known = sorted({name for _, record in trials for name in settings_of(record.recipe)})
    raise ConfigError(
        f"--best-per must be a choice of the recipe, such as model or optimizer, but got {field!r}:"
        f" no trial has it{did_you_mean(field, known) or '.'}"
    )


def find_history(choice: Choice, *, top: int) -> list[RecordHeld]:
    """Returns the latest `top` records of each board as they were set; raises as `find_boards`."""
    # A miss sets no record.
    found = chosen_trials(choice, only_reached=True)
    boards = boards_of(record_history(trial.record for trial in found))
    return [held for board in boards for held in board[-top:]]


def chosen_trials(choice: Choice, *, only_reached: bool = False) -> list[TrackedTrial]:
    """Returns all chosen trials, or those of them that met the target; raises as `find_boards`."""
    return find_matching(choice.uri, choice.where, **choice.of_trial, only_reached=only_reached)


def _leaders(choice: Choice, *, top: int) -> Leaders:
    return find_leaders(choice.uri, **choice.of_trial, top=top)
