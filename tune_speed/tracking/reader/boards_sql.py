"""What leaderboards query of a store, from its tables themselves (see `BoardReader`)."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tune_speed.core.comparability import ComparisonKey, target_of
from tune_speed.tracking import schema
from tune_speed.tracking.reader.boards_mlflow import Search
from tune_speed.tracking.reader.parent_run import PARENT
from tune_speed.tracking.reader.queries import TrackedTrial
from tune_speed.tracking.reader.tables import OF_THESE_STUDIES, Tables, batches


class _Ranked(NamedTuple):
    """A trial's place."""

    expected_s: float
    final: float | None
    run_id: str
    experiment_id: str

    def order(self, sign: float) -> tuple[float, float, str]:
        """Returns by what it is sorted: the lower time first, then the better final metric.

        `sign` is 1 where more of the metric is better, -1 where less is.
        """
        minus_final = math.inf if self.final is None else -sign * self.final
        return self.expected_s, minus_final, self.run_id


class TableReader:
    """Queries the tables of a store about one study, or all."""

    def __init__(self, tables: Tables, study: str | None) -> None:
        self._tables, self._study = tables, study
        self._boards: dict[str, list[_Ranked]] | None = None

    def searches(self) -> list[Search]:
        """See `BoardReader`."""
        values = {"search": schema.SEARCH_ID, "name": schema.STUDY}
        rows = self._tables.query(_SEARCHES, values, study=self._study)
        found: list[Search] = []
        for some in batches(rows):
            texts = self._tables.texts(schema.BOARDS, [run_id for run_id, *_ in some])
            for run_id, experiment, study in some:
                totals = schema.unpack_boards(texts[run_id])
                found.append(Search(run_id, str(experiment), study or "", totals))
        return found

    def trials_of(self, searches: Sequence[Search]) -> Iterator[TrackedTrial]:
        """See `BoardReader`."""
        parents = {search.run_id for search in searches}
        values = {"parent": PARENT, "record": schema.RECORD}
        rows = self._tables.query(_CHILDREN, values, study=self._study)
        runs = [(run_id, str(experiment)) for run_id, experiment, of in rows if of in parents]
        yield from self._tables.tracked(runs)

    def in_order(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        """See `BoardReader`."""
        if self._boards is None:
            self._boards = self._all_boards()
        places = self._boards.get(schema.board_id(key), [])
        trials = self._tracked(places, sign=1.0)
        first = next(trials, None)
        if first is None:
            return
        if target_of(first.record.workload).mode == "min":
            yield from self._tracked(places, sign=-1.0)
        else:
            yield first
            yield from trials

    def any_of(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        """See `BoardReader`."""
        values = {"board_tag": schema.BOARD, "board": schema.board_id(key)}
        rows = self._tables.query(_MEMBERS, values, study=self._study)
        yield from self._tables.tracked((run_id, str(experiment)) for run_id, experiment in rows)

    def _tracked(self, places: Sequence[_Ranked], *, sign: float) -> Iterator[TrackedTrial]:
        ordered = sorted(places, key=lambda place: place.order(sign))
        return self._tables.tracked((place.run_id, place.experiment_id) for place in ordered)

    def _all_boards(self) -> dict[str, list[_Ranked]]:
        """Returns the places of all trials that have one, board by board, in one pass."""
        # The runs are read as they lie in the file, as their metrics and tags have that order too.
        boards: dict[str, list[_Ranked]] = {}
        values = {
            "board_tag": schema.BOARD,
            "expected": schema.EXPECTED,
            "final": schema.FINAL_METRIC,
        }
        rows = self._tables.query(_PLACES, values, study=self._study)
        for board, run_id, experiment, expected_s, final in rows:
            place = _Ranked(expected_s, final, run_id, str(experiment))
            boards.setdefault(board, []).append(place)
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
_MEMBERS = f"""
SELECT r.run_uuid, r.experiment_id
FROM tags b {{then}} runs r ON r.run_uuid = b.run_uuid
WHERE b.{{key}} = :board_tag AND b.value = :board AND {OF_THESE_STUDIES}
"""
