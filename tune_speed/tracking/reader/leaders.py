"""The leading trials of each board, and what all of its trials come to."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tune_speed.core import comparability
from tune_speed.core.comparability import ComparisonKey, Totals, sum_of
from tune_speed.core.records import Recommended, Status
from tune_speed.tracking import schema
from tune_speed.tracking.reader.changes import Seen, ask, experiments_of, tracked
from tune_speed.tracking.reader.queries import ANY, BEST_FIRST, IS_TRIAL, Query, boards_in
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.tracking.record_index import RecordIndex
from tune_speed.tracking.store.store import Store

Place = tuple[ComparisonKey, str]

_TOTALS = (
    f"board, study, COUNT(*), SUM(status = '{Status.REACHED.value}'), SUM(tuning_cost_s),"
    " SUM(device_s)"
)


@dataclass(frozen=True, kw_only=True)
class Leaders:
    """The head of each board."""

    trials: list[TrackedTrial]
    """Board by board: the fastest, and what is recommended; of a board whose trials all missed, one
    of them."""
    totals: dict[ComparisonKey, Totals]
    study_totals: dict[Place, Totals]
    """What those of each study come to, of whatever kind: what a search cost is shown with what it
    led to."""
    favourites: dict[ComparisonKey, list[Recommended]]
    """What searches recommend on each board, what has the least expected time first."""
    range_ends: dict[str, tuple[str, ...]]
    """Ranges at whose ends the best of each search lie, in words, by study."""


def find_leaders(store: Store, query: Query = ANY, *, top: int = 20) -> Leaders:
    """Returns the `top` trials of each board, over the studies, and the boards' totals.

    One more is given where there is one: it shows whether the last of them shares its rank. As many
    of what searches recommend are among them, and none that misses in half of its runs.

    Raises: ServiceError if the store does not answer, ConfigError if it has no such study.
    """
    assert top > 0, top
    most = min(top + 1, sys.maxsize)

    def read(index: RecordIndex, seen: Seen) -> Leaders:
        experiments = list(seen.studies) or experiments_of(store, query.study)
        named = boards_in(index, experiments)
        parts = _totals_in(index, experiments, replace(query, kind=None), named)
        keys = sorted({key for key, _ in parts if query.takes(key)})
        searches = [search.stored for search in seen.searches]
        favourites = favourites_on(keys, map(schema.unpack_favourites, searches))
        boards = {key: text for text, key in named.items()}
        trials: list[TrackedTrial] = []
        for key in keys:
            best = _in_order(favourites.get(key, []))[:most]
            trials += _head(index, experiments, boards[key], best, most=most)
        return Leaders(
            trials=trials,
            totals={key: sum_of(t for (own, _), t in parts.items() if own == key) for key in keys},
            study_totals=parts,
            favourites=favourites,
            range_ends={
                tags.get(schema.STUDY, ""): ends
                for tags in searches
                if (ends := schema.unpack_range_ends(tags))
            },
        )

    return ask(store, query.study, read)


def favourites_on(
    keys: Iterable[ComparisonKey], found: Iterable[schema.Favourites]
) -> dict[ComparisonKey, list[Recommended]]:
    by_id = {schema.board_id(key): key for key in keys}
    own: dict[ComparisonKey, list[tuple[Recommended, ...]]] = {}
    for board, best in found:
        if board in by_id:
            own.setdefault(by_id[board], []).append(best)
    return {
        key: [each for best in sorted(lists, key=lambda best: best[0].expected_s) for each in best]
        for key, lists in own.items()
    }


def _in_order(best: Sequence[Recommended]) -> list[Recommended]:
    order = comparability.order_of(best)
    return sorted(best, key=lambda each: order[each.study, each.trial_id])


def _totals_in(
    index: RecordIndex,
    experiments: Sequence[str],
    query: Query,
    boards: Mapping[str, ComparisonKey],
) -> dict[Place, Totals]:
    rows = index.rows(_TOTALS, experiments, f"{IS_TRIAL} GROUP BY board, study")
    return {
        (boards[board], study): Totals(**dict(zip(Totals.model_fields, sums, strict=True)))
        for board, study, *sums in rows
        if query.takes(boards[board])
    }


def _head(
    index: RecordIndex,
    experiments: Sequence[str],
    board: str,
    best: Sequence[Recommended],
    *,
    most: int,
) -> list[TrackedTrial]:
    """Returns the first `most` that have a rank, or one that has none; then those of `best`."""
    columns, of_board = "run_id, experiment_id", f"{IS_TRIAL} AND board = ?"
    ranked = f"{of_board} AND ranked_s IS NOT NULL {BEST_FIRST} LIMIT {most}"
    first = index.rows(columns, experiments, ranked, board)
    first = first or index.rows(columns, experiments, f"{of_board} LIMIT 1", board)
    wanted = f"{IS_TRIAL} AND run_id = ?"
    others = [row for each in best for row in index.rows(columns, experiments, wanted, each.run_id)]
    return list(tracked(index, dict.fromkeys([*first, *others])))
