"""An SQLite store's answers to a leaderboard, from the file itself.

MLflow takes seconds to be imported before it asks anything; and where the file has no statistics,
its ordered queries look at each run once for every other. Here the order of the joins is written
down (CROSS JOIN), so that no statistics are needed. The tables are MLflow's since version 1.
"""

import json
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Self

from tune_speed.standing import BoardKey, Totals
from tune_speed.tracking import schema
from tune_speed.tracking.board_reader import Search
from tune_speed.tracking.queries import TrackedTrial
from tune_speed.tracking.study_runs import PARENT

CACHE_KIB = 65_536
"""Of the file's pages: the part of an index that one name takes fits in at 100,000 runs."""

_log = logging.getLogger(__name__)


class _Ranked(NamedTuple):
    """A trial's place: the lower time first, then the higher final metric."""

    expected_s: float
    minus_final: float
    run_id: str
    experiment_id: str


class SqliteReader:
    """Asks the file of a store."""

    def __init__(self, connection: sqlite3.Connection, experiments: Sequence[str]) -> None:
        self._connection, self._experiments = connection, json.dumps(list(map(int, experiments)))
        self._boards: dict[str, list[_Ranked]] | None = None

    @classmethod
    def open(cls, path: Path, study: str | None) -> Self | None:
        """Returns a reader; None where the file does not hold the study, or none at all.

        Raises: sqlite3.Error if there is no such file, or it is no store.
        """
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        try:
            sought = {"study": study, "key": schema.KIND, "kind": schema.STUDY_KIND}
            found = connection.execute(_EXPERIMENTS if study is None else _EXPERIMENT, sought)
            experiments = [str(number) for (number,) in found]
        except BaseException:
            connection.close()
            raise
        if not experiments:
            connection.close()
            return None
        return cls(connection, experiments)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def searches(self) -> list[Search]:
        """See `BoardReader`."""
        found = self._ask(_SEARCHES, key=schema.SEARCH_ID, study=schema.STUDY).fetchall()
        return [
            Search(run_id, str(experiment), study or "", self._totals(run_id))
            for run_id, experiment, study in found
        ]

    def trials_of(self, searches: Sequence[Search]) -> Iterator[TrackedTrial]:
        """See `BoardReader`."""
        parents = json.dumps([search.run_id for search in searches])
        found = self._ask(_CHILDREN, key=PARENT, parents=parents, record=schema.RECORD).fetchall()
        for run_id, experiment in found:
            yield from self._tracked(run_id, str(experiment))

    def in_order(self, key: BoardKey) -> Iterator[TrackedTrial]:
        """See `BoardReader`."""
        if self._boards is None:
            self._boards = self._all_boards()
        for place in sorted(self._boards.get(schema.board_id(key), [])):
            yield from self._tracked(place.run_id, place.experiment_id)

    def any_of(self, key: BoardKey) -> Iterator[TrackedTrial]:
        """See `BoardReader`."""
        names = {"key": schema.BOARD, "board": schema.board_id(key)}
        for run_id, experiment in self._ask(_MEMBERS, **names):
            yield from self._tracked(run_id, str(experiment))

    def _all_boards(self) -> dict[str, list[_Ranked]]:
        """Returns the places of all trials that have one, board by board: one pass over the store.

        The runs are taken as they lie in the file, as their metrics and tags lie in that order too.
        """
        boards: dict[str, list[_Ranked]] = {}
        names = {"key": schema.BOARD, "time": schema.EXPECTED, "final": schema.FINAL_METRIC}
        for board, run_id, experiment, expected_s, final in self._ask(_PLACES, **names):
            place = _Ranked(expected_s, -(final or 0.0), run_id, str(experiment))
            boards.setdefault(board, []).append(place)
        return boards

    def _totals(self, run_id: str) -> dict[BoardKey, Totals] | None:
        return schema.unpack_boards(self._tags(run_id, schema.BOARDS))

    def _tracked(self, run_id: str, experiment_id: str) -> Iterator[TrackedTrial]:
        """Yields the trial, or nothing if its record cannot be read."""
        record = schema.unpack_record(self._tags(run_id, schema.RECORD))
        if record is None:
            _log.warning("run %s is left out: its record cannot be read", run_id)
            return
        yield TrackedTrial(
            run_id=run_id, experiment_id=experiment_id, record=record, has_curve=False
        )

    def _tags(self, run_id: str, name: str) -> dict[str, str]:
        """Returns the tag `name` of a run, and its further parts: `name.1`, `name.2`."""
        found = self._connection.execute(_TAGS, {"run": run_id, "name": name})
        return dict(map(itemgetter(0, 1), found))

    def _ask(self, query: str, **values: str) -> sqlite3.Cursor:
        return self._connection.execute(query, {"experiments": self._experiments, **values})


_EXPERIMENTS = """
SELECT e.experiment_id FROM experiment_tags t JOIN experiments e USING (experiment_id)
WHERE t.key = :key AND t.value = :kind AND e.lifecycle_stage = 'active'
"""
_EXPERIMENT = """
SELECT experiment_id FROM experiments WHERE name = :study AND lifecycle_stage = 'active'
"""
_OF_THESE_STUDIES = """
r.lifecycle_stage = 'active' AND r.experiment_id IN (SELECT value FROM json_each(:experiments))
"""
_SEARCHES = f"""
SELECT r.run_uuid, r.experiment_id, name.value
FROM tags t CROSS JOIN runs r ON r.run_uuid = t.run_uuid
LEFT JOIN tags name ON name.key = :study AND name.run_uuid = r.run_uuid
WHERE t.key = :key AND {_OF_THESE_STUDIES}
"""
_CHILDREN = f"""
SELECT r.run_uuid, r.experiment_id
FROM tags t CROSS JOIN runs r ON r.run_uuid = t.run_uuid
CROSS JOIN tags record ON record.key = :record AND record.run_uuid = r.run_uuid
WHERE t.key = :key AND t.value IN (SELECT value FROM json_each(:parents)) AND {_OF_THESE_STUDIES}
"""
_PLACES = f"""
SELECT b.value, r.run_uuid, r.experiment_id, time.value, final.value
FROM runs r NOT INDEXED
CROSS JOIN latest_metrics time ON time.key = :time AND time.run_uuid = r.run_uuid
CROSS JOIN tags b ON b.key = :key AND b.run_uuid = r.run_uuid
LEFT JOIN latest_metrics final ON final.key = :final AND final.run_uuid = r.run_uuid
WHERE {_OF_THESE_STUDIES}
"""
_MEMBERS = f"""
SELECT r.run_uuid, r.experiment_id
FROM tags b CROSS JOIN runs r ON r.run_uuid = b.run_uuid
WHERE b.key = :key AND b.value = :board AND {_OF_THESE_STUDIES}
"""
_TAGS = """
SELECT key, value FROM tags INDEXED BY index_tags_run_uuid
WHERE run_uuid = :run AND (key = :name OR key GLOB :name || '.[0-9]*')
"""
