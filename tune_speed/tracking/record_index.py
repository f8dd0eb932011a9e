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
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from tune_speed.core.folders import default_cache_dir
from tune_speed.core.version import __version__
from tune_speed.tracking import schema
from tune_speed.tracking.store.store import Store

# Other versions of this package may know a field by another value.
VERSION = crc32(f"1 {__version__}".encode()) >> 1
# Longest wait for another process that fills the index of a large store.
BUSY_S = 60.0
_MEMORY = ":memory:"
# Of a run that the store has, be it in the trash.
_THERE = "end_ms >= 0"

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class Known(NamedTuple):
    """The state in which the index has a run."""

    end_ms: int
    """0: it has a record, and its end is not written yet."""
    is_deleted: bool
    parent_id: str


class Sums(NamedTuple):
    """What changes wherever a run ends, changes, goes to the trash or comes back."""

    num_runs: int
    end_ms: int
    """Of all together."""
    num_deleted: int


class Run(NamedTuple):
    """A run of a trial that ended, or whose record is there."""

    run_id: str
    experiment_id: str
    parent_id: str
    start_ms: int
    end_ms: int
    is_deleted: bool
    facts: Sequence[Any]
    """As in `schema.Facts`; without a record that can be read, its trial, kind and status alone."""
    text: str = ""
    """The record, where it came along."""


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


class RecordIndex:
    """The index of one store; several threads and processes may use it at once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.RLock()
        name = sha256(f"{os.geteuid()} {store}".encode()).hexdigest()[:16]
        self._path = default_cache_dir() / "records" / f"{name}.db"
        self._db: sqlite3.Connection | None = None

    def used(self, read: Callable[["RecordIndex"], Result]) -> Result:
        """Returns what `read` makes of it; where it turns out to be damaged or full, of another."""
        with self._lock:
            try:
                self._db = self._db or _opened(self._path)
                return read(self)
            except sqlite3.Error as error:
                _log.info("the index of %s is made again: %s", self.store, error)
                # One that is locked or cannot grow may still serve others.
                if not isinstance(error, sqlite3.OperationalError):
                    _remove(self._path)
                self._db = _connected(_MEMORY)
                return read(self)

    def rows(
        self, columns: str, experiments: Iterable[str], condition: str, *values: Any
    ) -> list[Any]:
        """Returns columns of the runs of these experiments for which `condition` (SQL) holds.

        Trials with a record that can be read have a `board`. Some may be in the trash.
        """
        among = "experiment_id IN (SELECT value FROM json_each(?))"
        query = f"SELECT {columns} FROM trials WHERE {among} AND {condition}"
        return self._query(query, json.dumps(list(experiments)), *values)

    def known(self, experiments: Iterable[str]) -> dict[str, Known]:
        """Returns the state of its runs by id."""
        rows = self.rows("run_id, end_ms, is_deleted, parent_id", experiments, _THERE)
        return {run_id: Known(end_ms, bool(gone), of) for run_id, end_ms, gone, of in rows}

    def sums(self, experiments: Iterable[str]) -> Sums:
        """Returns what shows whether its runs are those of the store, without looking at each."""
        columns = "COUNT(*), COALESCE(SUM(end_ms), 0), COALESCE(SUM(is_deleted), 0)"
        return Sums(*self.rows(columns, experiments, _THERE)[0])

    def stamps(self) -> dict[str, str]:
        """Returns the state in which each search was found last, by run id."""
        return dict(self._query("SELECT run_id, stamp FROM searches"))

    def latest_ms(self) -> dict[str, int]:
        """Returns the latest end of each experiment's runs."""
        return dict(
            self._query("SELECT experiment_id, MAX(end_ms) FROM trials GROUP BY experiment_id")
        )

    def take(self, runs: Sequence[Run], gone: Iterable[str] = ()) -> None:
        """Puts these runs in, in place of what it has of them; `gone`: those that are no more."""
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
        """Keeps the states of searches, by run id."""
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

    def texts(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Returns the records that it has, as text by run id."""
        query = "SELECT run_id, text FROM records WHERE run_id IN (SELECT value FROM json_each(?))"
        return dict(self._query(query, json.dumps(list(run_ids))))

    @contextmanager
    def _written(self) -> Iterator[None]:
        """All that is written within is there at once, or none of it."""
        assert self._db is not None, "outside of `used`"
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def _query(self, query: str, *values: Any) -> list[Any]:
        assert self._db is not None, "outside of `used`"
        return self._db.execute(query, values).fetchall()

    def _write(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        assert self._db is not None, "outside of `used`"
        self._db.executemany(statement, rows)


@lru_cache(maxsize=4)
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
