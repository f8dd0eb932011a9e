"""What every test gets: one thread, and caches and studies in a folder of its own."""

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from helpers.reporting.browser import Visit
    from helpers.texts import Texts
    from playwright.sync_api import Browser, BrowserContext

os.environ.setdefault("OMP_NUM_THREADS", "1")
TESTS = Path(__file__).parent
_num_frozen = [0]
sys.path.insert(0, str(TESTS))
# How fast examples are drawn says how busy the machine is, not whether the code is right.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", metavar="FILE", help="see tests/durations.py")
    parser.addoption("--keep-texts", action="store_true", help="see tests/helpers/texts.py")
    parser.addoption("--record-lines", metavar="FOLDER", help="see tests/coverage_by_room.py")


def pytest_configure(config: pytest.Config) -> None:
    from helpers.recorders import DurationsRecorder, LinesRecorder

    if path := config.getoption("--record-durations"):
        config.pluginmanager.register(DurationsRecorder(Path(path).absolute()))
    if folder := config.getoption("--record-lines"):
        config.pluginmanager.register(LinesRecorder(Path(folder).absolute()))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files without a slow test unread by `-m slow`: reading them took 10 s a process."""
    is_for_slow = config.getoption("markexpr") == "slow" and collection_path.suffix == ".py"
    return True if is_for_slow and not may_be_slow(collection_path) else None


def may_be_slow(file: Path) -> bool:
    """Returns whether a file of tests names the mark, or a store that is tested with it too."""
    return re.search("slow|any_(new_)?store", file.read_text()) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first, so that no process waits for another at the end."""
    from longest_first import rank

    slow = {item.path for item in items if item.get_closest_marker("slow")}
    assert all(map(may_be_slow, slow)), slow
    items.sort(key=lambda item: rank(os.path.relpath(item.path, TESTS)))


def pytest_unconfigure() -> None:
    # C++ libraries complain at the exit about objects that were never freed.
    gc.unfreeze()


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def kept_text(request: pytest.FixtureRequest) -> "Texts":
    """Holds a text that people read against `texts.yaml` of the test's room."""
    from helpers.texts import Texts

    return Texts(request)


def pytest_runtest_setup() -> None:
    """Keeps what is imported out of collections: a trial makes one, which took 0.4 s with it."""
    if len(sys.modules) > _num_frozen[-1] + 50:
        gc.collect()
        gc.freeze()
        _num_frozen[:] = [len(sys.modules)]


@pytest.fixture(scope="session", autouse=True)
def _not_the_user_s(
    session_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Keeps what modules share from them too: a certification would wait for the user's trials."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        patch.setenv("TUNE_SPEED_STUDIES", str(tmp_path_factory.mktemp("studies")))
        patch.setenv("TUNE_SPEED_TURNSTILE", str(tmp_path_factory.mktemp("turnstile")))
        # Tests that run beside one another would disturb each other's runs.
        patch.setattr("tune_speed.runtime.process.HeldUp.frac", lambda self: 0.0)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps tests from the user's own caches, studies, trials and MLflow store."""
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(session_cache))
    monkeypatch.setenv("TUNE_SPEED_STUDIES", str(tmp_path / "studies"))
    monkeypatch.setenv("TUNE_SPEED_TURNSTILE", str(tmp_path / "turnstile"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command as `command.run` does, but in this process: imports are done only once.

    For commands that neither start Ray nor are about a process: what they print, and their code.
    """
    from helpers.command import Done, exit_code

    def call(*arguments: str, folder: Path) -> Done:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("TUNE_SPEED_STUDIES", str(folder / "tune_speed_studies"))
        capsys.readouterr()
        code = exit_code(*arguments)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    from helpers.reporting.browser import chromium
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = chromium(playwright.chromium.executable_path)
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser: "Browser") -> "Iterator[Callable[..., Visit]]":
    """Opens a page of its own in the browser."""
    from helpers.reporting.browser import DESKTOP, Visit

    contexts: list[BrowserContext] = []

    def make(*, is_offline: bool = True, **options: Any) -> Visit:
        contexts.append(browser.new_context(**{"viewport": DESKTOP, **options}))
        contexts[-1].set_default_timeout(10_000)
        contexts[-1].set_offline(is_offline)
        contexts[-1].grant_permissions(["clipboard-read", "clipboard-write"])
        return Visit(contexts[-1])

    yield make
    for context in contexts:
        context.close()
