"""What leaderboards query of a store, from its tables themselves (see `BoardReader`)."""

import math
from collections.abc import Iterator, Sequence

from tune_speed.core.comparability import ComparisonKey
from tune_speed.tracking import schema
from tune_speed.tracking.reader.boards_mlflow import BoardReader, Search
from tune_speed.tracking.reader.parent_run import PARENT
from tune_speed.tracking.reader.queries import TrackedTrial
from tune_speed.tracking.reader.tables import OF_THESE_STUDIES, Row, Tables, batches


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
        values = {"parent": PARENT, "record": schema.RECORD}
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
        """Returns run, experiment, expected time and final metric of all trials that have a rank.

        Board by board, in one pass.
        """
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
