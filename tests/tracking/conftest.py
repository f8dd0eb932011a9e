"""Stores for tests: the tables are made once by the real thing, and copied."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tune_speed.tracking import Tracker, open_store


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    open_store(f"sqlite:///{path}")
    return path


@pytest.fixture
def uri(tmp_path: Path, empty_store: Path) -> str:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


@pytest.fixture
def client(uri: str) -> Any:
    return open_store(uri)


@pytest.fixture
def make_tracker(client: Any) -> Iterator[Callable[..., Tracker]]:
    """Trackers of the study `study`, closed at the end."""
    trackers: list[Tracker] = []

    def make(**settings: Any) -> Tracker:
        settings = {"study": "study", "study_tags": {}, "linger_s": 0.02, **settings}
        trackers.append(Tracker(client, **settings))
        return trackers[-1]

    yield make
    for tracker in trackers:
        tracker.close(timeout_s=5)
