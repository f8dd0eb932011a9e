import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tune_speed.core.errors import StorageError
from tune_speed.runtime.file_lock import file_lock


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
