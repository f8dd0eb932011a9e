"""What a leaderboard queries of a store: through MLflow's client, or faster from its tables."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from tune_speed.core.comparability import ComparisonKey, Totals, target_of
from tune_speed.tracking import schema
from tune_speed.tracking.reader.queries import HAS_RECORD, experiments_of, tracked
from tune_speed.tracking.reader.tables import (
    OF_THESE_STUDIES,
    Row,
    Tables,
    TrackedTrial,
    batches,
)
from tune_speed.tracking.store.store import PAGE, Store, runs_with

# Parent runs alone have the tag: to find its key takes no look at the trials.
IS_SEARCH = f"tags.`{schema.SEARCH_ID}` LIKE '%'"
LEADERS_FIRST = {
    "max": (f"metrics.{schema.EXPECTED} ASC", f"metrics.{schema.FINAL_METRIC} DESC"),
    "min": (f"metrics.{schema.EXPECTED} ASC", f"metrics.{schema.FINAL_METRIC} ASC"),
}
"""By the mode of the board's target, which any of its trials names."""
# Rows beyond the leaders that a page has room for, as the last ones may tie.
NUM_SPARE = 10


class Search(NamedTuple):
    """A parent run, and what its trials come to: None if it does not say."""

    run_id: str
    experiment_id: str
    study: str
    totals: dict[ComparisonKey, Totals] | None
    favourites: schema.Favourites
    range_ends: tuple[str, ...] = ()


class BoardReader(ABC):
    """What a leaderboard needs to know of the chosen studies of a store."""

    @abstractmethod
    def searches(self) -> list[Search]:
        """Returns the parent runs."""

    @abstractmethod
    def trials_of(self, searches: Sequence[Search]) -> Iterator[TrackedTrial]:
        """Yields all finished trials of these searches."""

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

    @abstractmethod
    def ranked(self, key: ComparisonKey, mode: str) -> Iterator[TrackedTrial]:
        """Yields what `in_order` does, where `mode` is that of the board's target."""

    @abstractmethod
    def by_id(self, run_ids: Sequence[str]) -> Iterator[TrackedTrial]:
        """Yields the finished trials with these MLflow ids that are not in the trash."""

    @abstractmethod
    def any_of(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        """Yields those of a board's trials that say so themselves, in any order."""


class MlflowReader(BoardReader):
    """Queries through MLflow's client: one ordered query a board."""

    def __init__(self, store: Store, study: str | None, *, top: int) -> None:
        """Raises: ServiceError without the store, ConfigError without study."""
        self._store, self._experiments = store, experiments_of(store, study)
        self._page_size = min(top + NUM_SPARE, PAGE)

    def searches(self) -> list[Search]:
        return [
            Search(
                run.info.run_id,
                run.info.experiment_id,
                run.data.tags.get(schema.STUDY, ""),
                schema.unpack_boards(run.data.tags),
                schema.unpack_favourites(run.data.tags),
                schema.unpack_range_ends(run.data.tags),
            )
            for run in runs_with(self._store, self._experiments, {}, also=IS_SEARCH)
        ]

    def trials_of(self, searches: Sequence[Search]) -> Iterator[TrackedTrial]:
        for search in searches:
            parent = {schema.PARENT: search.run_id}
            runs = runs_with(self._store, [search.experiment_id], parent, also=HAS_RECORD)
            yield from tracked(runs)

    def by_id(self, run_ids: Sequence[str]) -> Iterator[TrackedTrial]:
        if not run_ids:
            return iter(())
        names = ", ".join(f"'{run_id}'" for run_id in run_ids)
        also = f"attributes.run_id IN ({names})"
        return tracked(runs_with(self._store, self._experiments, {}, also=also))

    def any_of(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        return tracked(self._runs(key))

    def ranked(self, key: ComparisonKey, mode: str) -> Iterator[TrackedTrial]:
        runs = self._runs(key, order_by=LEADERS_FIRST[mode])
        return tracked(takewhile(lambda run: schema.EXPECTED in run.data.metrics, runs))

    def _runs(self, key: ComparisonKey, *, order_by: Sequence[str] = ()) -> Iterator[Any]:
        board, size = {schema.BOARD: schema.board_id(key)}, self._page_size
        return runs_with(self._store, self._experiments, board, order_by=order_by, page_size=size)


class TableReader(BoardReader):
    """Queries the tables of a store about one study, or all."""

    def __init__(self, tables: Tables, study: str | None) -> None:
        self._tables, self._study = tables, study
        self._boards: dict[str, list[Row]] | None = None

    def searches(self) -> list[Search]:
        values = {"search": schema.SEARCH_ID, "name": schema.STUDY}
        rows = self._tables.query(_SEARCHES, values, study=self._study)
        found: list[Search] = []
        for some in batches(rows):
            run_ids = [run_id for run_id, *_ in some]
            texts = self._tables.texts(schema.BOARDS, run_ids)
            best = self._tables.texts(schema.RECOMMENDED, run_ids)
            ends = self._tables.texts(schema.RANGE_ENDS, run_ids)
            for run_id, experiment, study in some:
                totals = schema.unpack_boards(texts[run_id])
                favourites = schema.unpack_favourites(best[run_id])
                said = totals, favourites, schema.unpack_range_ends(ends[run_id])
                found.append(Search(run_id, str(experiment), study or "", *said))
        return found

    def trials_of(self, searches: Sequence[Search]) -> Iterator[TrackedTrial]:
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


_SEARCHES = f"""
SELECT r.run_uuid, r.experiment_id, named.value
FROM tags t {{then}} runs r ON r.run_uuid = t.run_uuid
LEFT JOIN tags named ON named.{{key}} = :name AND named.run_uuid = r.run_uuid
WHERE t.{{key}} = :search AND {OF_THESE_STUDIES}
"""
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
