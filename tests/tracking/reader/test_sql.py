import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_record
from helpers.tracking.servers import Postgres
from helpers.tracking.stores import put

from tune_speed.core.errors import ServiceError
from tune_speed.tracking import Store, find_trials
from tune_speed.tracking.reader import tables as store_tables
from tune_speed.tracking.reader.leaders import find_leaders
from tune_speed.tracking.reader.studies import list_studies
from tune_speed.tracking.reader.tables import Tables, read_directly


@pytest.fixture
def store(any_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    put([make_record()], any_store)
    return Store(any_store)


def names(tables: Tables) -> list[Any]:
    return [name for (name,) in tables.query("SELECT name FROM experiments")]


def test_a_table_is_read_as_it_is(store: Store) -> None:
    assert sorted(read_directly(store, names) or []) == ["Default", "study"]


def test_reading_cannot_write(store: Store) -> None:
    def write(tables: Tables) -> list[Any]:
        return list(tables.query("UPDATE experiments SET name = 'gone'"))

    assert read_directly(store, write) is None
    assert sorted(read_directly(store, names) or []) == ["Default", "study"]


def test_bound_values_cannot_be_statements(store: Store) -> None:
    odd = "'; DROP TABLE runs; -- \" :name {runs} %s"
    ids = read_directly(store, lambda tables: list(tables.query("{studies}", study=odd)))
    assert ids == []
    assert len(find_trials(store)) == 1


def test_a_long_record_comes_together_from_its_parts(store: Store) -> None:
    long = make_record("long", params={f"p{i}": "x" * 100 for i in range(200)})
    put([long], store.uri)
    found = {trial.record.trial_id: trial.record for trial in find_leaders(store).trials}
    assert found["long"] == long


def test_a_tracking_server_is_left_to_mlflow() -> None:
    assert read_directly(Store("http://127.0.0.1:9"), names) is None


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    for query in (find_leaders, list_studies, find_trials):
        with pytest.raises(ServiceError, match="pip install 'psycopg2-binary'") as error:
            query(Store("postgresql+psycopg2://me:s3cret@127.0.0.1:9/db"))
        assert "s3cret" not in str(error.value)


def test_a_server_that_is_down_is_explained_as_mlflow_does() -> None:
    pytest.importorskip("psycopg2")
    said = []
    for query in (find_leaders, list_studies, find_trials):
        with pytest.raises(ServiceError, match="connection refused") as error:
            query(Store("postgresql+psycopg2://me:s3cret@127.0.0.1:9/db"))
        said.append(str(error.value))
    assert len(set(said)) == 1 and "s3cret" not in said[0]


def test_a_server_that_keeps_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg2")
    monkeypatch.setattr(store_tables, "CONNECT_S", 0.1)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ServiceError, match=r"no answer within 0\.1 s"):
            find_leaders(Store(f"postgresql+psycopg2://me@127.0.0.1:{port}/db"))


@pytest.mark.slow
def test_an_answer_is_not_waited_for_forever(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_tables, "READ_S", 0.3)
    with pytest.raises(ServiceError, match=r"no answer within 0\.3 s"):
        read_directly(
            Store(postgres.uri("empty")), lambda tables: tables.query("SELECT pg_sleep(9)")
        )


@pytest.mark.slow
def test_the_server_ends_only_what_nobody_waits_for(postgres: Postgres) -> None:
    (limit,) = read_directly(
        Store(postgres.uri("empty")), lambda tables: tables.query("SHOW statement_timeout")
    ) or ((),)
    assert limit == ("310s",)


@pytest.mark.slow
def test_who_may_not_read_is_told_so_by_mlflow(postgres: Postgres) -> None:
    name = postgres.new_store().rsplit("/", 1)[1]
    postgres.run(name, f"CREATE ROLE stranger_{name} LOGIN PASSWORD 's3cret'")
    uri = postgres.uri(name, user=f"stranger_{name}")
    assert read_directly(Store(uri), names) is None
    for query in (find_leaders, list_studies):
        with pytest.raises(ServiceError, match="permission denied") as error:
            query(Store(uri))
        assert "s3cret" not in str(error.value)


@pytest.mark.slow
def test_the_tables_of_another_mlflow_are_explained_by_mlflow(postgres: Postgres) -> None:
    uri = postgres.new_store()
    other = "UPDATE alembic_version SET version_num = 'other'"
    postgres.run(uri.rsplit("/", 1)[1], "ALTER TABLE experiment_tags RENAME TO labels", other)
    for query in (find_leaders, list_studies):
        with pytest.raises(ServiceError, match="the schema of another version of MLflow"):
            query(Store(uri))
