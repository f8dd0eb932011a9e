import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tune_speed.core.records import Timing
from tune_speed.core.words import Note, NoteKind
from tune_speed.runtime.sharing import Sharing, Tenancy


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNE_SPEED_TURNSTILE", str(tmp_path))
    return tmp_path


def open_place(trial: str = "t0000", *, may_have_company: bool = False):  # type: ignore[no-untyped-def]
    return Sharing.open("gpu-1", study="s", trial=trial, may_have_company=may_have_company)


def test_a_run_that_nobody_joins_has_its_device_to_itself() -> None:
    with open_place() as sharing:
        sharing.look()
        assert not sharing.isolates
        for frac in (0.0, 0.09):
            assert sharing.timing_of_clock(lambda frac=frac: frac) == (Timing.EXCLUSIVE, ())
        why = Note.of(NoteKind.DISTURBED, share=0.12)
        assert sharing.timing_of_clock(lambda: 0.12) == (Timing.DISTURBED, (why,))


def test_a_run_that_finds_others_there_isolates_its_steps_and_names_them() -> None:
    with Tenancy.begin("gpu-1", study="other", trial="t0007"), open_place() as sharing:
        assert sharing.isolates
        assert sharing.cotenants == ("other/t0007",)


def test_tenants_of_other_devices_are_no_company() -> None:
    with Tenancy.begin("gpu-2", study="other", trial="t0007"), open_place() as sharing:
        assert sharing.cotenants == ()


def test_who_may_have_company_isolates_before_it_comes() -> None:
    with open_place(may_have_company=True) as sharing:
        assert sharing.isolates
        assert sharing.timing_of_clock()[0] == Timing.SHARED


def test_a_clock_that_others_disturbed_later_is_called_shared() -> None:
    with open_place() as sharing:
        with open_place("t0001"):
            sharing.look()
        timing, (note,) = sharing.timing_of_clock(lambda: 0.9)
    assert timing == Timing.SHARED
    assert note == Note.of(NoteKind.OTHERS_CAME, others="s/t0001")


def test_without_locks_times_are_called_shared_and_it_is_said_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TUNE_SPEED_TURNSTILE", str(blocked))
    with open_place() as sharing:
        timing, (note,) = sharing.timing_of_clock()
    assert timing == Timing.SHARED
    assert note.kind is NoteKind.UNSEEN and str(blocked) in str(note)


def test_run_that_resumes_knows_who_was_there_before(tmp_path: Path) -> None:
    with Tenancy.begin("gpu-1", study="other", trial="t0007"), open_place() as earlier:
        seen = earlier.seen_so_far()
    assert (seen.cotenants, seen.isolates, seen.why_not) == (("other/t0007",), True, None)
    with open_place("t0001") as sharing:
        assert (sharing.cotenants, sharing.isolates) == ((), False)
        sharing.resume(seen)
        assert (sharing.cotenants, sharing.isolates) == (("other/t0007",), True)
        assert sharing.seen_so_far() == seen


def test_what_kept_locks_from_working_is_said_after_resuming_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with monkeypatch.context() as patch:
        patch.setenv("TUNE_SPEED_TURNSTILE", str(blocked))
        with open_place() as earlier:
            seen = earlier.seen_so_far()
    assert str(blocked) in str(seen.why_not)
    with open_place() as sharing:
        sharing.resume(seen)
        assert sharing.timing_of_clock()[0] == Timing.SHARED
        assert sharing.seen_so_far() == seen


def test_why_no_step_could_be_timed_is_said_after_resuming_too() -> None:
    with Tenancy.begin("gpu-1", study="other", trial="t0007"), open_place() as earlier:
        earlier.explain("steps are too long")
        seen = earlier.seen_so_far()
    with open_place("t0001") as sharing:
        sharing.resume(seen)
        why = Note.of(NoteKind.OTHER, text="steps are too long")
        assert sharing.timing_of_clock() == (Timing.SHARED, (why,))


def test_run_that_keeps_to_itself_sees_nobody() -> None:
    sharing = Sharing.alone()
    assert (sharing.cotenants, sharing.isolates, sharing.label) == ((), False, "")


KEY = "GPU-1"
TENANT = """
import sys, time
from pathlib import Path
from tune_speed.runtime.sharing import Tenancy
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
from tune_speed.runtime.sharing import Tenancy
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
