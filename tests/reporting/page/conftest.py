from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.command import run
from helpers.reporting.browser import Visit
from helpers.reporting.pages import certified, ordinary, page_of, varied

from tune_speed.core.records import TrialRecord
from tune_speed.tracking import Store, Tracker

if TYPE_CHECKING:
    from playwright.sync_api import Page


def deliver(uri: str, records: list[TrialRecord], *, parent_kind: str) -> None:
    tags = {"workload": "digits"}
    tracker = Tracker(Store(uri), study="study", study_tags=tags, parent_kind=parent_kind)
    for record in records:
        tracker.trial_finished(record=record)
    assert tracker.close(timeout_s=60) == ()


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> str:
    folder = tmp_path_factory.mktemp("study")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    deliver(uri, ordinary(), parent_kind="search")
    deliver(uri, [certified("t0002", 0.7, 0.8, 0.9)], parent_kind="certification")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        done = run("report", "study", "--html", "page.html", "--json", folder=folder)
    assert done.code == 0, done.err
    assert done.json["trials"] == 13
    return (folder / "page.html").as_uri()


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("varied") / "page.html"
    path.write_text(page_of(varied()))
    return path.as_uri()


@pytest.fixture
def page(visit: Callable[..., Visit], address: str) -> "Page":
    return visit().goto(address)
