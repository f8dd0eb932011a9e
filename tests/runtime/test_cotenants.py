import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tune_speed.runtime.cotenants import Tenancy

KEY = "GPU-1"
TENANT = """
import sys, time
from pathlib import Path
from tune_speed.runtime.cotenants import Tenancy
tenancy = Tenancy.begin("GPU-1", study="other", trial="t0003", folder=Path(sys.argv[1]))
print(tenancy.why_not, flush=True)
time.sleep(30)
"""


def begin(folder: Path, trial: str, *, study: str = "study", key: str = KEY) -> Tenancy:
    tenancy = Tenancy.begin(key, study=study, trial=trial, folder=folder)
    assert tenancy.why_not is None
    return tenancy


def start_tenant(folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", TENANT, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "None\n"
    return process


def test_tenants_of_one_device_see_one_another(tmp_path: Path) -> None:
    with begin(tmp_path, "t0001") as first, begin(tmp_path, "t0002") as second:
        with begin(tmp_path, "t0001") as twin, begin(tmp_path, "t0009", key="GPU-2") as elsewhere:
            assert first.others() == ("study/t0001", "study/t0002")
            assert second.others() == ("study/t0001", "study/t0001")
            assert twin.others() == first.others() and elsewhere.others() == ()
        assert first.others() == ("study/t0002",)
    assert first.others() == () and not list((tmp_path / f"{KEY}.tenants").iterdir())


def test_processes_of_live_tenants_are_known_and_one_that_all_descend_from_is_none(
    tmp_path: Path,
) -> None:
    with begin(tmp_path, "t0001") as tenancy, start_tenant(tmp_path) as other:
        for name in ("1-t0002", "odd", "²-t0003"):
            (tmp_path / f"{KEY}.tenants" / name).touch()
        locked = [(tmp_path / f"{KEY}.tenants" / name).open() for name in ("1-t0002", "odd")]
        for file in locked:
            fcntl.flock(file, fcntl.LOCK_EX)
        assert tenancy.pids() == {other.pid} and len(tenancy.others()) == 3
        other.kill()
        other.wait(10)
        assert tenancy.pids() == set()
        for file in locked:
            file.close()


def test_others_can_read_who_is_there_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        with begin(tmp_path, "t0001"):
            (file,) = (tmp_path / f"{KEY}.tenants").iterdir()
            assert file.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(umask)


def test_a_killed_tenant_is_gone_and_its_file_removed(tmp_path: Path) -> None:
    with begin(tmp_path, "t0001") as tenancy, start_tenant(tmp_path) as other:
        assert tenancy.others() == ("other/t0003",)
        other.kill()
        other.wait(10)
        assert tenancy.others() == ()
        assert len(list((tmp_path / f"{KEY}.tenants").iterdir())) == 1


@pytest.mark.parametrize("study", ["../../etc", "a/b\n\x1b[31m", "Ünïcode ✓", "", "x" * 5000])
def test_names_are_text_only(tmp_path: Path, study: str) -> None:
    with begin(tmp_path, study, study=study, key=study), begin(tmp_path, "b", key=study) as other:
        (label,) = other.others()
    assert label.isprintable() and len(label) <= 200
    assert label == f"{study}/{study}".replace("\n", "?").replace("\x1b", "?")[:200]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b"7", b"[" * 60_000])
def test_a_live_tenant_that_writes_nonsense_still_counts(tmp_path: Path, content: bytes) -> None:
    with begin(tmp_path, "t0001") as tenancy:
        path = tmp_path / f"{KEY}.tenants" / "1-odd"
        path.write_bytes(content)
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert tenancy.others() == ("?/1-odd",)
        assert tenancy.others() == () and not path.exists()


def test_what_is_no_tenant_is_passed_over(tmp_path: Path) -> None:
    with begin(tmp_path, "t0001") as tenancy:
        folder = tmp_path / f"{KEY}.tenants"
        (folder / "folder").mkdir()
        (folder / "link").symlink_to(tmp_path / "nowhere")
        os.mkfifo(folder / "pipe")
        assert tenancy.others() == () and tenancy.why_not is None


def test_a_file_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    removed: list[Path] = []

    def remove_first(file: int, operation: int) -> None:
        if not removed:
            (path,) = (tmp_path / f"{KEY}.tenants").iterdir()
            path.unlink()
            removed.append(path)
        flock(file, operation)

    with monkeypatch.context() as patch, begin(tmp_path, "t0002") as watcher:
        watcher.close()
        patch.setattr(fcntl, "flock", remove_first)
        with begin(tmp_path, "t0001"), begin(tmp_path, "t0002") as other:
            assert removed and other.others() == ("study/t0001",)


def test_a_forked_child_does_not_end_its_parents_tenancy(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from tune_speed.runtime.cotenants import Tenancy
first, second = (
    Tenancy.begin("k", study="s", trial=trial, folder=Path(sys.argv[1])) for trial in "ab"
)
child = os.fork()
if child == 0:
    os._exit(0 if first.others() == () and first.why_not else 1)
assert os.waitpid(child, 0)[1] == 0
assert first.others() == ("s/b",) and second.others() == ("s/a",)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=30)


def test_without_flock_or_folder_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / "file").touch()
    nowhere = Tenancy.begin(KEY, study="s", trial="t", folder=tmp_path / "file")
    monkeypatch.setattr(fcntl, "flock", refuse)
    unlocked = Tenancy.begin(KEY, study="s", trial="t", folder=tmp_path / "folder")
    for tenancy in (nowhere, unlocked):
        assert tenancy.others() == () and "file system with flock, but" in str(tenancy.why_not)
        tenancy.close()
    assert not list((tmp_path / "folder" / f"{KEY}.tenants").iterdir())


def test_flock_that_fails_later_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with begin(tmp_path, "t0001") as tenancy, begin(tmp_path, "t0002"):
        monkeypatch.setattr(fcntl, "flock", refuse)
        assert tenancy.others() == () and "No locks available" in str(tenancy.why_not)
