"""A store's tables, read by SQL: MLflow takes seconds to be imported before its first query."""

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tune_speed.core.records import TrialRecord
from tune_speed.tracking import schema
from tune_speed.tracking.store.opening import engine_of, explain, within
from tune_speed.tracking.store.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Connection

Row = Sequence[Any]
Execute = Callable[[str, Mapping[str, Any]], Iterable[Row]]
# Runs that one statement reads.
AT_ONCE = 512

# Of a file's pages: the part of an index that one name takes fits in at 100,000 runs.
CACHE_KIB = 65_536
# Longest wait for a database server's connection, as for MLflow's.
CONNECT_S = 10.0
# Longest wait for its answers, all of them together.
READ_S = 300.0

Result = TypeVar("Result")
Item = TypeVar("Item")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackedTrial:
    """A finished trial, and where MLflow stores it."""

    run_id: str
    experiment_id: str
    record: TrialRecord
    has_curve: bool = False
    """False: each run has its last evaluation only, and a long traceback only its end."""

    @property
    def name(self) -> str:
        return f"{self.record.study}/{self.record.trial_id}"


class Words(NamedTuple):
    """What SQL's dialects write differently."""

    key: str
    """The column `key`, which is a reserved word in some."""
    then: str
    """Joins; in SQLite in the order written, so that a file without statistics is fast too."""
    as_they_lie: str
    """Makes SQLite read a table in the order in which it lies in the file."""


class Tables:
    """The tables of one store."""

    def __init__(self, execute: Execute, words: Words) -> None:
        self._execute, self._words = execute, words._asdict()

    def query(
        self,
        query: str,
        values: Mapping[str, Any] | None = None,
        *,
        study: str | None = None,
        runs: Sequence[str] = (),
    ) -> Iterable[Row]:
        """Returns the rows that a statement finds.

        It has `:name` for bound values, `{key}` and so on for `Words`, `{studies}` for the ids of
        the chosen experiments, `{runs}` for those of the runs.
        """
        text = query.format(
            **self._words,
            studies=(_ALL if study is None else _ONE).format(**self._words),
            runs=", ".join(f":run_{i}" for i in range(len(runs))),
        )
        bound = {f"run_{i}": run_id for i, run_id in enumerate(runs)}
        if "{studies}" in query:
            bound |= _KINDS if study is None else {"study_name": study}
        return self._execute(text, {**bound, **(values or {})})

    def texts(self, name: str, runs: Sequence[str]) -> dict[str, dict[str, str]]:
        """Returns the tag `name` of each run, and its further parts: `name.1`, `name.2`."""
        found: dict[str, dict[str, str]] = {run_id: {} for run_id in runs}
        part = 0
        while runs:
            key = f"{name}.{part}" if part else name
            rows = list(self.query(_TAG, {"tag": key}, runs=runs))
            for run_id, value in rows:
                found[run_id][key] = value
            runs, part = [run_id for run_id, _ in rows], part + 1
        return found


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yields the items in lists of at most `AT_ONCE`."""
    left = iter(items)
    while some := list(islice(left, AT_ONCE)):
        yield some


def read_directly(store: Store, read: Callable[[Tables], Result | None]) -> Result | None:
    """Returns what `read` makes of the store's tables; None where MLflow must be used.

    So it is with a tracking server, and where a statement fails or `read` returns None.

    Raises: ServiceError if a database server does not answer or lacks its driver; what `read`
        raises.
    """
    if store.file is not None:
        words = Words(key='"key"', then="CROSS JOIN", as_they_lie="NOT INDEXED")
        try:
            with closing(sqlite3.connect(f"{store.file.as_uri()}?mode=ro", uri=True)) as connection:
                connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                return read(Tables(connection.execute, words))
        except sqlite3.Error as error:
            _log.debug("the file does not answer", exc_info=error)
            return None
    return _read_server(store.uri, read) if store.kind == "database" else None


def _read_server(uri: str, read: Callable[[Tables], Result | None]) -> Result | None:
    from sqlalchemy.exc import SQLAlchemyError

    try:
        engine = engine_of(uri)
        connection = within(CONNECT_S, engine.connect)
    except (SQLAlchemyError, OSError) as error:
        raise explain(error, uri) from error

    def answer() -> Result | None:
        with connection:
            return read(_server_tables(connection))

    try:
        # In a thread: drivers do not hear Ctrl-C while they wait for an answer.
        return within(READ_S, answer)
    except SQLAlchemyError as error:
        _log.debug("the database does not answer", exc_info=error)
        return None
    except TimeoutError as error:
        raise explain(error, uri) from error


def _server_tables(connection: "Connection") -> Tables:
    from sqlalchemy import text

    if connection.dialect.name == "postgresql":
        # All statements of one answer read the same snapshot of the store.
        connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        # Later than we stop waiting, else its error may come first and MLflow would be asked next.
        timeout_ms = round(1000 * (READ_S + CONNECT_S))
        connection.execute(text(f"SET LOCAL statement_timeout = {timeout_ms}"))

    def execute(query: str, values: Mapping[str, Any]) -> list[Row]:
        return [tuple(row) for row in connection.execute(text(query), dict(values))]

    quote = connection.dialect.identifier_preparer.quote_identifier
    return Tables(execute, Words(key=quote("key"), then="JOIN", as_they_lie=""))


_KINDS = {"study_key": schema.KIND, "study_kind": schema.STUDY_KIND}
_ALL = """
SELECT e.experiment_id FROM experiment_tags kind
JOIN experiments e ON e.experiment_id = kind.experiment_id
WHERE kind.{key} = :study_key AND kind.value = :study_kind AND e.lifecycle_stage = 'active'
"""
_ONE = """
SELECT e.experiment_id FROM experiments e
WHERE e.name = :study_name AND e.lifecycle_stage = 'active'
"""
_TAG = "SELECT t.run_uuid, t.value FROM tags t WHERE t.{key} = :tag AND t.run_uuid IN ({runs})"
OF_THESE_STUDIES = "r.lifecycle_stage = 'active' AND r.experiment_id IN ({studies})"
