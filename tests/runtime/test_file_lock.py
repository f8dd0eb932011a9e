import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tune_speed.core.errors import StorageError
from tune_speed.runtime.file_lock import (
    PREFIX,
    TemporaryFolder,
    file_lock,
    leftovers,
    remove_leftovers,
)


def hold(path: Path, is_held: Event) -> None:
    with file_lock(path, wait_s=10):
        is_held.set()
        time.sleep(600)


def test_a_lock_that_stays_taken_ends_the_wait_and_names_its_holder(tmp_path: Path) -> None:
    with (
        file_lock(tmp_path / "a.lock", wait_s=1),
        pytest.raises(StorageError, match=rf"free within 0.1 s, but process {os.getpid()} holds"),
        file_lock(tmp_path / "a.lock", wait_s=0.1),
    ):
        pytest.fail("two hold the lock at once")


def test_waiting_goes_on_until_the_holder_is_done(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with file_lock(tmp_path / "a.lock", wait_s=10):
            order.append("second")

    thread = threading.Thread(target=second)
    with file_lock(tmp_path / "a.lock", wait_s=1):
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_killed_holder_leaves_no_lock_behind(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    is_held = context.Event()
    holder = context.Process(target=hold, args=(tmp_path / "a.lock", is_held))
    holder.start()
    assert is_held.wait(30) and holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(10)
    with file_lock(tmp_path / "a.lock", wait_s=5):
        pass


def test_a_lock_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.lock").mkdir()
    with (
        pytest.raises(StorageError, match=r"a\.lock cannot be written: it is a folder"),
        file_lock(tmp_path / "a.lock", wait_s=1),
    ):
        pytest.fail("a folder was locked")


def test_lock_file_may_be_taken_by_whoever_the_user_lets_write(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        with file_lock(tmp_path / "a.lock", wait_s=1):
            assert (tmp_path / "a.lock").stat().st_mode & 0o7777 == 0o664
    finally:
        os.umask(before)


MAKES_ONE = """
from tune_speed.runtime.file_lock import TemporaryFolder
folder = TemporaryFolder()
(folder.path / "ray").mkdir()
print(folder.path, flush=True)
input()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_folder_is_gone_after_the_block_and_after_close(place: Path) -> None:
    with TemporaryFolder() as folder:
        (folder / "file").touch()
        assert list(place.iterdir()) == [folder]
    assert list(place.iterdir()) == []
    closed = TemporaryFolder()
    closed.close()
    closed.close()
    assert list(place.iterdir()) == []


def test_folder_of_a_killed_process_is_removed_and_that_of_a_live_one_is_not(place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKES_ONE],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        with TemporaryFolder() as ours:
            remove_leftovers()
            assert (theirs / "ray").is_dir() and ours.is_dir()
            assert list(leftovers()) == []
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert list(leftovers()) == [theirs]
            remove_leftovers()
            assert list(place.iterdir()) == [ours]


def test_what_is_not_ours_stays(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    (place / f"{PREFIX}link").symlink_to(elsewhere)
    (place / f"{PREFIX}file").touch()
    (place / "tune_speed-turnstile").mkdir()
    before = sorted(place.iterdir())
    remove_leftovers()
    assert sorted(place.iterdir()) == before
    assert (elsewhere / "file").exists()


def test_folder_that_is_removed_before_it_is_locked_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def mkdtemp(prefix: str) -> str:
        made.append(place / f"{prefix}{len(made)}")
        made[-1].mkdir()
        return str(made[-1])

    def acquire(file: int, *, wait_s: float) -> bool:
        if len(made) == 1:
            shutil.rmtree(made[0])
        return True

    monkeypatch.setattr("tempfile.mkdtemp", mkdtemp)
    monkeypatch.setattr("tune_speed.runtime.file_lock.acquire", acquire)
    with TemporaryFolder() as folder:
        assert folder == made[1]


def test_without_locks_folders_are_made_and_none_is_taken_for_left(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire(file: int, *, wait_s: float) -> bool:
        raise OSError("no locks here")

    monkeypatch.setattr("tune_speed.runtime.file_lock.acquire", acquire)
    with TemporaryFolder() as folder:
        assert list(leftovers()) == []
        assert folder.is_dir()
    assert list(place.iterdir()) == []
