"""Which file a session goes on in, what messages advise, and that a log that fails is let go."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.core.event_log import EventLog, LogAdvice, latest_log


def test_session_goes_on_in_the_last_file_or_begins_the_next(tmp_path: Path) -> None:
    def latest(*, again: bool = False) -> str:
        return latest_log(tmp_path, "a.b", again=again).name

    assert latest() == latest(again=True) == "a.b-1.jsonl"
    for name in ("a.b-2.jsonl", "a.b-10.jsonl", "axb-99.jsonl", "a.b-98.json", "a.b-x.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "ya.b-97.jsonl").touch()
    assert latest() == "a.b-10.jsonl"
    assert latest(again=True) == "a.b-11.jsonl"


def test_messages_say_what_to_do_by_default_and_as_they_are_told(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    advice = LogAdvice(locked="Wait.", damaged="repeat {what}", unwritable="make room")
    with EventLog(path, what="a test", advice=advice) as log:
        damaged, full = log.damaged(3, KeyError("x")), log.unwritable(OSError(28, "No space"))
        assert str(damaged).endswith("(KeyError). Fix or remove the line, or repeat a test.")
        assert f"{path}:3: " in str(damaged)
        assert str(full) == f"{path} cannot be written: No space. Free some space, or make room."
        with pytest.raises(ConfigError, match=r"^b test must be run .*\. Wait for it, or stop it"):
            EventLog(path, what="b test")
        with pytest.raises(
            ConfigError, match=rf"log\.jsonl( \(process {os.getpid()}\))?\. Wait\.$"
        ):
            EventLog(path, what="a test", advice=advice)
    assert stat.S_IMODE(path.stat().st_mode) & 0o700 == 0o600


@pytest.mark.parametrize("error", [ValueError, KeyError, TypeError, AttributeError])
def test_event_that_cannot_be_taken_is_damage(tmp_path: Path, error: type[Exception]) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "a"}\n{"event": "b", "x": 1}\n')

    def take(kind: str, event: dict[str, Any]) -> None:
        if kind == "b":
            assert event == {"x": 1}
            raise error("no")

    with pytest.raises(StorageError, match=rf"log\.jsonl:2: .*\({error.__name__}\)"):
        EventLog(path, what="a test").replay(take)
    # It was let go: another one may hold it.
    EventLog(path, what="a test").close()


def test_error_of_another_kind_passes_and_lets_go_too(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "a"}\n')

    def take(kind: str, event: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        EventLog(path, what="a test").replay(take)
    EventLog(path, what="a test").close()
