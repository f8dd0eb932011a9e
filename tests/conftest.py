"""What every test gets: one thread, and caches and studies in a folder of its own."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))  # `making`: records for tests


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps tests from the user's own caches, studies, trials and MLflow store."""
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(session_cache))
    monkeypatch.setenv("TUNE_SPEED_STUDIES", str(tmp_path / "studies"))
    monkeypatch.setenv("TUNE_SPEED_TURNSTILE", str(tmp_path / "turnstile"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
