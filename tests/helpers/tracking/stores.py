"""Stores filled for tests, and what a store keeps, by SQL of the tests' own."""

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy

from tune_speed.core.records import TrialRecord
from tune_speed.tracking import Store, Tracker
from tune_speed.tracking.reader import changes


def read_by_mlflow(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Has all stores read by MLflow's client from now on, into indexes of their own in `folder`."""
    monkeypatch.setattr(changes, "read_directly", lambda *_: None)
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(folder / "by_mlflow"))


class Run(NamedTuple):
    """An MLflow run that is not in the trash, of a trial."""

    run_id: str
    trial_id: str
    status: str
    points: Counter[tuple[str, int]]
    """How often each metric stands at each step."""

    def steps(self, metric: str = "accuracy") -> list[int]:
        return sorted(step for key, step in self.points if key == metric)


def runs_of_trials(uri: str, study: str) -> list[Run]:
    found = _ask(uri, _RUNS, study=study)
    return [Run(run, trial, status, _points(uri, run)) for run, trial, status in found]


def runs_of_searches(uri: str, study: str) -> list[Run]:
    """Returns the runs of the study's searches, without a trial id."""
    return [
        Run(run, "", status, _points(uri, run)) for run, status in _ask(uri, _SEARCHES, study=study)
    ]


def check_each_once(uri: str, study: str, statuses: dict[str, str]) -> list[Run]:
    """Fails unless there is one run of each of these trials and no other, and no point twice."""
    runs = runs_of_trials(uri, study)
    assert [(run.trial_id, run.status) for run in runs] == sorted(statuses.items())
    searches = runs_of_searches(uri, study)
    assert len(searches) == 1, searches
    for run in (*runs, *searches):
        twice = {point: n for point, n in run.points.items() if n > 1}
        assert not twice, (run.trial_id, twice)
    return runs


def check_curves(uri: str, study: str, records: list[dict[str, Any]]) -> None:
    """Fails unless each of the ledger's records is one ended run with its whole curve, once."""
    wanted = {r["trial_id"]: "FAILED" if r["status"] == "failed" else "FINISHED" for r in records}
    by_id = {run.trial_id: run for run in check_each_once(uri, study, wanted)}
    for record in records:
        steps = [each["step"] for each in record["runs"][-1]["evaluations"]]
        assert by_id[record["trial_id"]].steps() == sorted(steps), record["trial_id"]


def _points(uri: str, run_id: str) -> Counter[tuple[str, int]]:
    return Counter({(key, step): n for key, step, n in _ask(uri, _POINTS, run=run_id)})


def _ask(uri: str, query: str, **values: Any) -> list[Any]:
    engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        return list(connection.execute(sqlalchemy.text(query), values))


_RUNS = """
SELECT r.run_uuid, t.value, r.status
FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid AND t.key = 'tune_speed.trial_id'
JOIN experiments e ON e.experiment_id = r.experiment_id
WHERE e.name = :study AND r.lifecycle_stage = 'active' ORDER BY t.value
"""
_SEARCHES = """
SELECT r.run_uuid, r.status
FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid AND t.key = 'tune_speed.kind'
JOIN experiments e ON e.experiment_id = r.experiment_id
WHERE e.name = :study AND t.value = 'search' AND r.lifecycle_stage = 'active'
"""
_POINTS = "SELECT key, step, count(*) FROM metrics WHERE run_uuid = :run GROUP BY key, step"

# --- A store, filled as searches and certifications fill it


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
    store = Store(uri)
    ordered = sorted(records, key=lambda record: (record.study, record.kind))
    for (study, kind), group in groupby(ordered, key=lambda record: (record.study, record.kind)):
        parent = {"parent_kind": "certification"} if kind == "certified" else {}
        tracker = Tracker(store, study=study, study_tags={}, linger_s=0.02, **parent)
        for record in group:
            tracker.trial_finished(record=record)
        assert tracker.close(timeout_s=30) == ()


@cache
def _empty() -> bytes:
    """Returns a store without studies: making its tables takes seconds, copying them nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlflow.db"
        Store(f"sqlite:///{path}").create()
        return path.read_bytes()
