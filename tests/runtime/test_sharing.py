from pathlib import Path

import pytest

from tune_speed.core.records import Timing
from tune_speed.core.words import Note, NoteKind
from tune_speed.runtime.cotenants import Tenancy
from tune_speed.runtime.sharing import Sharing


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
