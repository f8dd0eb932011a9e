"""A local index of a store: a row for each trial that ended, by which all questions are answered.

It is a SQLite file in the cache folder, one for each user and store, and derived from the store
alone: lost, damaged, or of another version, it is made again. Where the folder cannot be written,
it is in memory. Before each answer the store is asked for what has ended or changed since the last
one (`reader.changes`).
"""

import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from tune_speed.core.folders import default_cache_dir
from tune_speed.core.version import __version__
from tune_speed.tracking import schema
from tune_speed.tracking.reader.changes import Known, Run, Seen, Sums, feed, texts_of
from tune_speed.tracking.reader.tables import TrackedTrial, batches
from tune_speed.tracking.store.store import Store

# Other versions of this package may know a field by another value.
VERSION = crc32(f"1 {__version__}".encode()) >> 1
# Longest wait for another process that fills the index of a large store.
BUSY_S = 60.0
_MEMORY = ":memory:"
# Of a run that the store has, be it in the trash.
_THERE = "end_ms >= 0"

Result = TypeVar("Result")

_COLUMNS = (*Run._fields[:-2], *schema.Facts._fields, "change")
_TABLES = f"""
CREATE TABLE trials ({", ".join(_COLUMNS)}, PRIMARY KEY (run_id));
CREATE INDEX by_rank ON trials (board, ranked_s);
CREATE INDEX by_change ON trials (experiment_id, change);
CREATE TABLE records (run_id PRIMARY KEY, text);
CREATE TABLE searches (run_id PRIMARY KEY, stamp);
CREATE TABLE fields (name, run_id, value, PRIMARY KEY (name, run_id)) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
"""
_log = logging.getLogger(__name__)


class RecordIndex:
    """The index of one store; several threads and processes may use it at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        name = sha256(f"{os.geteuid()} {store}".encode()).hexdigest()[:16]
        self._path = default_cache_dir() / "records" / f"{name}.db"
        self._db: sqlite3.Connection | None = None

    def ask(self, study: str | None, read: Callable[[Seen], Result]) -> Result:
        """Returns what `read` makes of the index, after it took in what is new of a study, or all.

        Raises: ServiceError if the store does not answer; ConfigError if it has no such study.
        """
        with self._lock:
            try:
                self._db = self._db or _opened(self._path)
                return read(feed(self._store, study, self))
            except sqlite3.Error as error:
                _log.info("the index of %s is made again: %s", self._store, error)
                # One that is locked or cannot grow may still serve others.
                if not isinstance(error, sqlite3.OperationalError):
                    _remove(self._path)
                self._db = _connected(_MEMORY)
                return read(feed(self._store, study, self))

    def rows(
        self, columns: str, experiments: Iterable[str], condition: str = "1", *values: Any
    ) -> list[Any]:
        """Returns columns of the runs of these experiments for which `condition` (SQL) holds.

        Trials with a record that can be read have a `board`. Some may be in the trash.
        """
        among = "experiment_id IN (SELECT value FROM json_each(?))"
        query = f"SELECT {columns} FROM trials WHERE {among} AND {condition}"
        return self._query(query, json.dumps(list(experiments)), *values)

    def tracked(self, runs: Iterable[Sequence[Any]]) -> Iterator[TrackedTrial]:
        """Yields the trials of these run and experiment ids in order; logs what cannot be read."""
        for some in batches(runs):
            texts = self._texts([run_id for run_id, *_ in some])
            for run_id, experiment_id, *_ in some:
                record = schema.unpack_record({schema.RECORD: texts.get(run_id, "")})
                if record is None:
                    _log.warning("run %s is left out: its record cannot be read", run_id)
                    continue
                yield TrackedTrial(run_id, experiment_id, record)

    def known(self, experiments: Iterable[str]) -> dict[str, Known]:
        rows = self.rows("run_id, end_ms, is_deleted, parent_id", experiments, _THERE)
        return {run_id: Known(end_ms, bool(gone), of) for run_id, end_ms, gone, of in rows}

    def sums(self, experiments: Iterable[str]) -> Sums:
        columns = "COUNT(*), COALESCE(SUM(end_ms), 0), COALESCE(SUM(is_deleted), 0)"
        return Sums(*self.rows(columns, experiments, _THERE)[0])

    def stamps(self) -> dict[str, str]:
        return dict(self._query("SELECT run_id, stamp FROM searches"))

    def latest_ms(self) -> dict[str, int]:
        return dict(
            self._query("SELECT experiment_id, MAX(end_ms) FROM trials GROUP BY experiment_id")
        )

    def take(self, runs: Sequence[Run], gone: Iterable[str] = ()) -> None:
        gone = list(gone)
        if not runs and not gone:
            return
        with self._written():
            ((last,),) = self._query("SELECT COALESCE(MAX(change), 0) FROM trials")
            # Greater than all before, though the index was made again meanwhile.
            change = max(last + 1, time.time_ns())
            marks = ", ".join("?" * len(_COLUMNS))
            rows = [(*run[:-2], *run.facts, change) for run in runs]
            self._write(f"INSERT OR REPLACE INTO trials VALUES ({marks})", rows)
            ids = [(run.run_id,) for run in runs]
            for table in ("records", "fields"):
                self._write(f"DELETE FROM {table} WHERE run_id = ?", ids)
            texts = [(run.run_id, run.text) for run in runs if run.text]
            self._write("INSERT OR REPLACE INTO records VALUES (?, ?)", texts)
            # With an end that none has, so that a run which comes back is taken again.
            lost = "UPDATE trials SET is_deleted = 1, end_ms = -1, change = ? WHERE run_id = ?"
            self._write(lost, [(change, run_id) for run_id in gone])

    def stamp(self, stamps: Mapping[str, str]) -> None:
        if stamps:
            with self._written():
                rows = stamps.items()
                self._write("INSERT OR REPLACE INTO searches VALUES (?, ?)", rows)

    def field(self, name: str) -> dict[str, str]:
        """Returns what `keep_fields` took of a field, by run id."""
        return dict(self._query("SELECT run_id, value FROM fields WHERE name = ?", name))

    def keep_fields(self, values: Mapping[str, Mapping[str, str]]) -> None:
        """Keeps fields' values by run id, so that the next filter by them reads no records."""
        rows = [(name, *each) for name, of in values.items() for each in of.items()]
        with self._written():
            self._write("INSERT OR REPLACE INTO fields VALUES (?, ?, ?)", rows)

    def _texts(self, run_ids: Sequence[str]) -> dict[str, str]:
        query = "SELECT run_id, text FROM records WHERE run_id IN (SELECT value FROM json_each(?))"
        found = dict(self._query(query, json.dumps(list(run_ids))))
        missing = [run_id for run_id in run_ids if run_id not in found]
        return {**found, **texts_of(self._store, missing)} if missing else found

    @contextmanager
    def _written(self) -> Iterator[None]:
        """All that is written within is there at once, or none of it."""
        assert self._db is not None, "outside of `ask`"
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def _query(self, query: str, *values: Any) -> list[Any]:
        assert self._db is not None, "outside of `ask`"
        return self._db.execute(query, values).fetchall()

    def _write(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        assert self._db is not None, "outside of `ask`"
        self._db.executemany(statement, rows)


@lru_cache(maxsize=8)
def index_of(store: Store) -> RecordIndex:
    """Returns the index of a store; a process opens it once."""
    return RecordIndex(store)


def _opened(path: Path) -> sqlite3.Connection:
    """Returns the index at `path`, made again where it cannot be used; else one in memory."""
    for is_damaged in (False, True):
        if is_damaged:
            _remove(path)
        try:
            return _connected(path)
        except sqlite3.OperationalError as error:
            _log.debug("the index is in memory", exc_info=error)
            break
        except sqlite3.DatabaseError as error:
            _log.info("the index %s is made again: %s", path, error)
    return _connected(_MEMORY)


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            path.with_name(path.name + suffix).unlink()


def _connected(path: Path | str) -> sqlite3.Connection:
    """Raises: sqlite3.DatabaseError: it is damaged, or of another version; OperationalError."""
    if isinstance(path, Path):
        _make_private(path)
    db = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    # An index that a power failure damages is made again.
    db.execute("PRAGMA synchronous = OFF")
    with db:
        db.execute("BEGIN IMMEDIATE")
        ((version,),) = db.execute("PRAGMA user_version").fetchall()
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"it is of version {version}, not {VERSION}")
        for statement in _TABLES.split(";") if version == 0 else ():
            db.execute(statement)
    return db


def _make_private(path: Path) -> None:
    # Records may say more than other users of the machine should see.
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise sqlite3.OperationalError(str(error)) from error
