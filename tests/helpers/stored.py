"""A store for tests that read results, filled as searches and certifications fill it."""

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path

from tune_speed.core.records import TrialRecord
from tune_speed.tracking import Tracker, open_store


def store_of(records: Iterable[TrialRecord], *, folder: Path) -> str:
    """Returns the URI of a new store in `folder` with these records, of whatever studies."""
    (folder / "mlflow.db").write_bytes(_empty())
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    put(records, uri)
    return uri


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Nobody else can write to an SQLite file meanwhile."""
    with closing(sqlite3.connect(database, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def put(records: Iterable[TrialRecord], uri: str) -> None:
    """Puts these records, of whatever studies, into a store."""
    client = open_store(uri)
    ordered = sorted(records, key=lambda record: (record.study, record.kind))
    for (study, kind), group in groupby(ordered, key=lambda record: (record.study, record.kind)):
        parent = {"parent_kind": "certification"} if kind == "certified" else {}
        tracker = Tracker(client, study=study, study_tags={}, linger_s=0.02, **parent)
        for record in group:
            tracker.trial_finished(record=record)
        assert tracker.close(timeout_s=30) == ()


@cache
def _empty() -> bytes:
    """Returns a store without studies: making its tables takes seconds, copying them nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlflow.db"
        open_store(f"sqlite:///{path}")
        return path.read_bytes()
