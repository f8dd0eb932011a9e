"""Opens a store's tables without MLflow, where that can be done: SQLite files, database servers."""

import logging
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from tune_speed.tracking.reader.tables import Row, Tables, Words
from tune_speed.tracking.store.deadline import within
from tune_speed.tracking.store.errors import explain
from tune_speed.tracking.store.probe import engine_of
from tune_speed.tracking.store.uri import sqlite_path, store_kind

if TYPE_CHECKING:
    from sqlalchemy import Connection

# Of a file's pages: the part of an index that one name takes fits in at 100,000 runs.
CACHE_KIB = 65_536
# Longest wait for a database server's connection, as for MLflow's.
CONNECT_S = 10.0
# Longest wait for its answers, all of them together.
READ_S = 300.0

Result = TypeVar("Result")
Read = Callable[[Tables], Result | None]

_log = logging.getLogger(__name__)


def read_directly(uri: str, read: Read[Result]) -> Result | None:
    """Returns what `read` makes of the store's tables.

    None where MLflow must be used: of a tracking server, where a statement fails (no such table or
    file, no permission), and where `read` returns it, as it does not find what it looks for.

    Raises: ServiceError if a database server does not answer, or its driver is not installed; what
        `read` raises.
    """
    kind = store_kind(uri)
    if kind == "sqlite":
        path = sqlite_path(uri)
        words = Words(key='"key"', then="CROSS JOIN", as_they_lie="NOT INDEXED")
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
                connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                return read(Tables(connection.execute, words))
        except sqlite3.Error as error:
            _log.debug("the file does not answer", exc_info=error)
            return None
    return _read_server(uri, read) if kind == "database" else None


def _read_server(uri: str, read: Read[Result]) -> Result | None:
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
        connection.execute(text(f"SET LOCAL statement_timeout = {round(READ_S * 1000)}"))

    def execute(query: str, values: Mapping[str, Any]) -> list[Row]:
        return [tuple(row) for row in connection.execute(text(query), dict(values))]

    quote = connection.dialect.identifier_preparer.quote_identifier
    return Tables(execute, Words(key=quote("key"), then="JOIN", as_they_lie=""))
