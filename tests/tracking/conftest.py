import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.tracking.servers import Postgres, postgresql, why_no_postgresql
from helpers.tracking.stores import read_by_mlflow

from tune_speed.tracking import Store, Tracker


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    Store(f"sqlite:///{path}").create()
    return path


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    reason = why_no_postgresql()
    if reason is not None:
        pytest.skip(reason)
    with postgresql() as server:
        yield Postgres(server)


def new_store(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return server.new_store()
    folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("new")
    shutil.copy(request.getfixturevalue("empty_store"), folder / "mlflow.db")
    return f"sqlite:///{folder / 'mlflow.db'}"


STORES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]


@pytest.fixture(params=STORES)
def any_store(request: pytest.FixtureRequest) -> str:
    """A store without studies, of either kind that is read without MLflow."""
    return new_store(request.param, request)


@pytest.fixture(scope="module", params=STORES)
def any_new_store(request: pytest.FixtureRequest) -> str:
    return new_store(request.param, request)


@pytest.fixture
def by_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns what has all stores read by MLflow's client, into indexes of their own."""

    return partial(read_by_mlflow, monkeypatch, tmp_path)


@pytest.fixture
def uri(tmp_path: Path, empty_store: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def store(uri: str) -> Store:
    return Store(uri)


@pytest.fixture
def client(store: Store) -> Any:
    return store.create()


@pytest.fixture
def make_tracker(store: Store) -> Iterator[Callable[..., Tracker]]:
    trackers: list[Tracker] = []

    def make(**settings: Any) -> Tracker:
        settings = {"study": "study", "study_tags": {}, "linger_s": 0.02, **settings}
        trackers.append(Tracker(store, **settings))
        return trackers[-1]

    yield make
    for tracker in trackers:
        tracker.close(timeout_s=5)
