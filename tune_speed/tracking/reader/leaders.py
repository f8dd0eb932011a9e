"""The leading trials of each board, and what all of its trials come to, without reading them all.

A search's parent run says what its trials come to, and each trial its board and place. Where an
older version did not say it, or a search has just begun, its trials are read one by one.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any

from tune_speed.core import comparability
from tune_speed.core.comparability import (
    ComparisonKey,
    SortKey,
    Totals,
    board_key,
    sum_of,
    target_of,
)
from tune_speed.core.records import Recommended
from tune_speed.core.stats import ranked_s
from tune_speed.tracking import schema
from tune_speed.tracking.reader.queries import ANY, HAS_RECORD, Query, experiments_of, tracked
from tune_speed.tracking.reader.studies import SearchRun, searches_by_mlflow, searches_in
from tune_speed.tracking.reader.tables import (
    OF_THESE_STUDIES,
    Row,
    Tables,
    TrackedTrial,
    batches,
    read_directly,
)
from tune_speed.tracking.store.store import PAGE, Store, runs_with

LEADERS_FIRST = {
    "max": (f"metrics.{schema.EXPECTED} ASC", f"metrics.{schema.FINAL_METRIC} DESC"),
    "min": (f"metrics.{schema.EXPECTED} ASC", f"metrics.{schema.FINAL_METRIC} ASC"),
}
"""By the mode of the board's target, which any of its trials names."""
# Rows beyond the leaders that a page has room for, as the last ones may tie.
NUM_SPARE = 10

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
    return found or leaders_of(BoardReader(store, study, top=top), query, top=top)


def leaders_of(reader: "BoardReader", query: Query, *, top: int) -> Leaders:
    searches = reader.searches()
    said = [(each, schema.unpack_boards(each.stored)) for each in searches]
    read, heads = _read([each for each, boards in said if boards is None], reader, keep=top + 1)
    known = [
        ((key, s.tags.get("study", "")), totals)
        for s, b in said
        for key, totals in (b or {}).items()
    ]
    of_any_kind = replace(query, kind=None)
    by_place: dict[Place, list[Totals]] = {}
    for place, totals in (*known, *read):
        if of_any_kind.takes(place[0]):
            by_place.setdefault(place, []).append(totals)
    parts = {place: sum_of(each) for place, each in by_place.items()}
    keys = sorted({key for key, _ in parts if query.takes(key)})
    favourites = favourites_on(keys, [schema.unpack_favourites(each.stored) for each in searches])
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
        range_ends={
            s.tags.get("study", ""): ends
            for s in searches
            if (ends := schema.unpack_range_ends(s.stored))
        },
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
    searches: Sequence[SearchRun], reader: "BoardReader", *, keep: int
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


class BoardReader:
    """What a leaderboard queries of a store: by MLflow, one ordered query a board."""

    def __init__(self, store: Store, study: str | None, *, top: int) -> None:
        """Raises: ServiceError without the store, ConfigError without study."""
        self._store, self._experiments = store, experiments_of(store, study)
        self._page_size = min(top + NUM_SPARE, PAGE)

    def searches(self) -> list[SearchRun]:
        """Returns the parent runs."""
        return searches_by_mlflow(self._store, self._experiments)

    def trials_of(self, searches: Sequence[SearchRun]) -> Iterator[TrackedTrial]:
        """Yields all finished trials of these searches."""
        for search in searches:
            parent = {schema.PARENT: search.run_id}
            runs = runs_with(self._store, [search.experiment_id], parent, also=HAS_RECORD)
            yield from tracked(runs)

    def in_order(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        """Yields a board's trials that have a rank and say so, fastest first; ties in any order."""
        trials = self.ranked(key, "max")
        first = next(trials, None)
        if first is None:
            return
        if target_of(first.record.workload).mode == "min":
            yield from self.ranked(key, "min")
        else:
            yield first
            yield from trials

    def by_id(self, run_ids: Sequence[str]) -> Iterator[TrackedTrial]:
        """Yields the finished trials with these MLflow ids that are not in the trash."""
        if not run_ids:
            return iter(())
        names = ", ".join(f"'{run_id}'" for run_id in run_ids)
        also = f"attributes.run_id IN ({names})"
        return tracked(runs_with(self._store, self._experiments, {}, also=also))

    def any_of(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        """Yields those of a board's trials that say so themselves, in any order."""
        return tracked(self._runs(key))

    def ranked(self, key: ComparisonKey, mode: str) -> Iterator[TrackedTrial]:
        """Yields what `in_order` does, where `mode` is that of the board's target."""
        runs = self._runs(key, order_by=LEADERS_FIRST[mode])
        return tracked(takewhile(lambda run: schema.EXPECTED in run.data.metrics, runs))

    def _runs(self, key: ComparisonKey, *, order_by: Sequence[str] = ()) -> Iterator[Any]:
        board, size = {schema.BOARD: schema.board_id(key)}, self._page_size
        return runs_with(self._store, self._experiments, board, order_by=order_by, page_size=size)


class TableReader(BoardReader):
    """The same, faster, from the store's tables."""

    def __init__(self, tables: Tables, study: str | None) -> None:
        self._tables, self._study = tables, study
        self._boards: dict[str, list[Row]] | None = None

    def searches(self) -> list[SearchRun]:
        return searches_in(self._tables, self._study)

    def trials_of(self, searches: Sequence[SearchRun]) -> Iterator[TrackedTrial]:
        parents = {search.run_id for search in searches}
        values = {"parent": schema.PARENT, "record": schema.RECORD}
        rows = self._tables.query(_CHILDREN, values, study=self._study)
        runs = [(run_id, str(experiment)) for run_id, experiment, of in rows if of in parents]
        yield from self._tables.tracked(runs)

    def ranked(self, key: ComparisonKey, mode: str) -> Iterator[TrackedTrial]:
        sign = -1.0 if mode == "max" else 1.0

        def place(row: Row) -> tuple[float, float, str]:
            run_id, _, expected_s, final = row
            return expected_s, math.inf if final is None else sign * final, run_id

        if self._boards is None:
            self._boards = self._all_boards()
        rows = sorted(self._boards.get(schema.board_id(key), ()), key=place)
        return self._tables.tracked((run_id, str(experiment)) for run_id, experiment, *_ in rows)

    def by_id(self, run_ids: Sequence[str]) -> Iterator[TrackedTrial]:
        for some in batches(run_ids):
            rows = self._tables.query(_ALIVE, study=self._study, runs=some)
            yield from self._tables.tracked((run_id, str(of)) for run_id, of in list(rows))

    def any_of(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        values = {"board_tag": schema.BOARD, "board": schema.board_id(key)}
        rows = self._tables.query(_MEMBERS, values, study=self._study)
        yield from self._tables.tracked((run_id, str(experiment)) for run_id, experiment in rows)

    def _all_boards(self) -> dict[str, list[Row]]:
        # The runs are read as they lie in the file, as their metrics and tags have that order too.
        boards: dict[str, list[Row]] = {}
        metrics = {"expected": schema.EXPECTED, "final": schema.FINAL_METRIC}
        values = {"board_tag": schema.BOARD, **metrics}
        for board, *row in self._tables.query(_PLACES, values, study=self._study):
            boards.setdefault(board, []).append(row)
        return boards


_CHILDREN = f"""
SELECT r.run_uuid, r.experiment_id, t.value
FROM tags t {{then}} runs r ON r.run_uuid = t.run_uuid
{{then}} tags record ON record.{{key}} = :record AND record.run_uuid = r.run_uuid
WHERE t.{{key}} = :parent AND {OF_THESE_STUDIES}
"""
_PLACES = f"""
SELECT b.value, r.run_uuid, r.experiment_id, timed.value, scored.value
FROM runs r {{as_they_lie}}
{{then}} latest_metrics timed ON timed.{{key}} = :expected AND timed.run_uuid = r.run_uuid
{{then}} tags b ON b.{{key}} = :board_tag AND b.run_uuid = r.run_uuid
LEFT JOIN latest_metrics scored ON scored.{{key}} = :final AND scored.run_uuid = r.run_uuid
WHERE {OF_THESE_STUDIES}
"""
_ALIVE = f"""
SELECT r.run_uuid, r.experiment_id FROM runs r
WHERE r.run_uuid IN ({{runs}}) AND {OF_THESE_STUDIES}
"""
_MEMBERS = f"""
SELECT r.run_uuid, r.experiment_id
FROM tags b {{then}} runs r ON r.run_uuid = b.run_uuid
WHERE b.{{key}} = :board_tag AND b.value = :board AND {OF_THESE_STUDIES}
"""
