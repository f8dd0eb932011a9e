"""Temporary folders outlive no session: what a killed one leaves is removed by the next."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tune_speed.runtime import temporary
from tune_speed.runtime.temporary import PREFIX, TemporaryFolder, leftovers, remove_leftovers

MAKES_ONE = """
from tune_speed.runtime.temporary import TemporaryFolder
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

    monkeypatch.setattr(temporary.tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(temporary, "acquire", acquire)
    with TemporaryFolder() as folder:
        assert folder == made[1]


def test_without_locks_folders_are_made_and_none_is_taken_for_left(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire(file: int, *, wait_s: float) -> bool:
        raise OSError("no locks here")

    monkeypatch.setattr(temporary, "acquire", acquire)
    with TemporaryFolder() as folder:
        assert list(leftovers()) == []
        assert folder.is_dir()
    assert list(place.iterdir()) == []
