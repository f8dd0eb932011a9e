import os
from pathlib import Path

import pytest

from tune_speed.runtime.atomic_file import write_atomically


@pytest.mark.parametrize("durable", [False, True])
def test_content_is_there_when_the_block_ends_and_not_before(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with write_atomically(path, durable=durable) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_block_that_fails_leaves_the_old_content_alone(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)), write_atomically(path) as file:
        file.write(b"half")
        raise error
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_two_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with write_atomically(path) as first, write_atomically(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_text() == "first"  # Whose block ended last.


def test_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with write_atomically(tmp_path / "a.txt") as file:
            file.write(b"text")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


def test_missing_folder_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), write_atomically(tmp_path / "no" / "a.txt"):
        pytest.fail("opened")


def test_durable_content_is_on_the_disk_before_its_name_and_its_name_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced, fsync = tmp_path / "a.txt", list[tuple[str, bool]](), os.fsync

    def watched(file: int) -> None:
        fsync(file)
        synced.append((os.readlink(f"/proc/self/fd/{file}"), path.exists()))

    monkeypatch.setattr(os, "fsync", watched)
    with write_atomically(path) as file:
        file.write(b"new")
    assert synced == []
    path.unlink()
    num_open = len(os.listdir("/proc/self/fd"))
    with write_atomically(path, durable=True) as file:
        file.write(b"new")
    (temporary, was_there), last = synced
    assert temporary.startswith(f"{path}.") and not was_there
    assert last == (str(tmp_path), True)
    assert len(os.listdir("/proc/self/fd")) == num_open
