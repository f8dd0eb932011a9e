"""The leading trials of each board, and what all of its trials come to, without reading them all.

A search's parent run says what its trials come to, and each trial its board and place. Where an
older version did not say it, or a search has just begun, its trials are read one by one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tune_speed.core import comparability
from tune_speed.core.comparability import ComparisonKey, SortKey, Totals, board_key, sum_of
from tune_speed.core.records import Recommended
from tune_speed.core.stats import ranked_s
from tune_speed.tracking import schema
from tune_speed.tracking.reader.boards import BoardReader, MlflowReader, Search, TableReader
from tune_speed.tracking.reader.queries import ANY, Query
from tune_speed.tracking.reader.tables import Tables, TrackedTrial, read_directly
from tune_speed.tracking.store.store import PAGE, Store

Place = tuple[ComparisonKey, str]


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
    study = query.study

    def read(tables: Tables) -> Leaders | None:
        # Without the study, reading through MLflow reports what is wrong.
        known = tables.holds(study)
        return leaders_of(TableReader(tables, study), query, top=top) if known else None

    found = read_directly(store, read)
    return found or leaders_of(MlflowReader(store, study, top=top), query, top=top)


def leaders_of(reader: BoardReader, query: Query, *, top: int) -> Leaders:
    searches = reader.searches()
    silent = [search for search in searches if search.totals is None]
    read, heads = _read(silent, reader, keep=top + 1)
    known = [((k, s.study), t) for s in searches for k, t in (s.totals or {}).items()]
    of_any_kind = replace(query, kind=None)
    by_place: dict[Place, list[Totals]] = {}
    for place, totals in (*known, *read):
        if of_any_kind.takes(place[0]):
            by_place.setdefault(place, []).append(totals)
    parts = {place: sum_of(each) for place, each in by_place.items()}
    keys = sorted({key for key, _ in parts if query.takes(key)})
    favourites = favourites_on(keys, [search.favourites for search in searches])
    trials: list[TrackedTrial] = []
    for key in keys:
        leading = _leading(reader.in_order(key), top + 1)
        both = {trial.run_id: trial for trial in (*heads.get(key, ()), *leading)}
        first = _first(both.values() or islice(reader.any_of(key), 1), top + 1)
        read_ids = {trial.run_id for trial in first}
        best = favourites.get(key, [])
        order = comparability.order_of(best)
        best = sorted(best, key=lambda each: order[each.study, each.trial_id])[: top + 1]
        others = [each.run_id for each in best if each.run_id not in read_ids | {""}]
        trials += [*first, *reader.by_id(others)]
    return Leaders(
        trials=trials,
        totals={key: sum_of(t for (own, _), t in parts.items() if own == key) for key in keys},
        study_totals=parts,
        favourites=favourites,
        range_ends={search.study: search.range_ends for search in searches},
    )


def favourites_on(
    keys: Iterable[ComparisonKey], found: Sequence[schema.Favourites]
) -> dict[ComparisonKey, list[Recommended]]:
    by_id = {key: schema.board_id(key) for key in keys}
    own = {key: [best for board, best in found if board == by_id[key]] for key in by_id}
    return {
        key: [each for best in sorted(lists, key=lambda best: best[0].expected_s) for each in best]
        for key, lists in own.items()
        if lists
    }


def _read(
    searches: Sequence[Search], reader: BoardReader, *, keep: int
) -> tuple[list[tuple[Place, Totals]], dict[ComparisonKey, list[TrackedTrial]]]:
    """Returns what the trials of `searches` come to, and the first `keep` of each board or more."""
    parts: list[tuple[Place, Totals]] = []
    heads: dict[ComparisonKey, list[TrackedTrial]] = {}
    for trial in reader.trials_of(searches) if searches else ():
        key = board_key(trial.record)
        parts.append(((key, trial.record.study), comparability.totals_of([trial.record])))
        head = heads.setdefault(key, [])
        head.append(trial)
        # No store is held in memory as a whole.
        if len(head) >= 2 * keep + PAGE:
            head[:] = _first(head, keep)
    return parts, heads


def _first(trials: Iterable[TrackedTrial], count: int) -> list[TrackedTrial]:
    """Returns the first `count` that have a rank, or one that has none where none has."""
    ordered = sorted(trials, key=lambda trial: comparability.best_first(trial.record))
    ranked = [trial for trial in ordered if ranked_s(trial.record) is not None]
    return ranked[:count] or ordered[:1]


def _leading(in_order: Iterator[TrackedTrial], top: int) -> Iterator[TrackedTrial]:
    """Yields the first `top`, and whoever ties with the last of them: names decide among these."""
    last: SortKey | None = None
    # Older versions gave certifications that were disturbed a place in it.
    ranked = (trial for trial in in_order if ranked_s(trial.record) is not None)
    for number, trial in enumerate(ranked):
        place = comparability.best_first(trial.record)[:3]
        if number >= top and place != last:
            return
        yield trial
        last = place
