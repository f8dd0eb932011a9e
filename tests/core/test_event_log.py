import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.core.event_log import EventLog, LogAdvice, SessionLog, differences, latest_log

EVENTS = [{"event": "begin", "name": "ä\u2028"}, {"event": "ran", "s": [1.5, None]}, {"event": "x"}]


class Session(SessionLog):
    what = "a test"

    def __init__(self, path: Path) -> None:
        self.taken: list[tuple[str, dict[str, Any]]] = []
        super().__init__(path)

    def take(self, kind: str, event: dict[str, Any]) -> None:
        self.taken.append((kind, {**event, "s": float(event["s"])}))


def opened(path: Path) -> EventLog:
    return EventLog(path, what="a test")


def write(path: Path, *events: dict[str, object]) -> None:
    with opened(path) as file:
        for event in events:
            file.append(event)


def read(path: Path) -> list[tuple[int, dict[str, object]]]:
    with opened(path) as file:
        return list(file.events())


def test_events_come_back_in_their_order_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "events.jsonl"
    write(path, *EVENTS[:1])
    write(path, *EVENTS[1:])
    assert read(path) == list(enumerate(EVENTS, start=1))
    assert len(path.read_text().splitlines()) == 3


def test_whatever_byte_a_kill_cut_it_at_the_whole_lines_stay_and_more_follow(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.jsonl"
    write(path, *EVENTS)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        # The last byte of a line, its end, is not missed.
        whole = EVENTS[: data[: size + 1].count(b"\n")]
        assert [event for _, event in read(path)] == whole
        write(path, {"event": "after"})
        assert [event for _, event in read(path)] == [*whole, {"event": "after"}]


@pytest.mark.parametrize("line", ["{", "[1]", '"text"', "[" * 100_000], ids=lambda line: line[:3])
def test_damaged_line_is_named_with_its_file(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f'{{"event": "begin"}}\n{line}\n{{"event": "x"}}\n')
    with pytest.raises(StorageError, match=r"events\.jsonl:2: .* a test from scratch"):
        read(path)


def test_only_one_may_hold_it_until_it_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with opened(path), pytest.raises(ConfigError, match="one process at a time"):
        opened(path)
    opened(path).close()


def test_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"events\.jsonl cannot be written"):
        opened(tmp_path / "file" / "events.jsonl")


def test_write_that_takes_a_piece_goes_on_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write_all = tmp_path / "events.jsonl", os.write
    monkeypatch.setattr(os, "write", lambda file, data: write_all(file, data[:7]))
    write(path, *EVENTS)
    assert [event for _, event in read(path)] == EVENTS


def test_write_that_fails_leaves_no_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write_all = tmp_path / "events.jsonl", os.write
    write(path, EVENTS[0])

    def full(file: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(28, "No space left on device")
        return write_all(file, data[:-9])

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space left"):
        patch.setattr(os, "write", full)
        write(path, EVENTS[1])
    write(path, EVENTS[2])
    assert [event for _, event in read(path)] == [EVENTS[0], EVENTS[2]]


def test_what_is_no_number_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with opened(path) as file, pytest.raises(ValueError, match="JSON"):
        file.append({"s": float("nan")})
    assert path.read_bytes() == b""


def test_differences_are_phrases_a_field_whatever_python_calls_a_list() -> None:
    begun = {"seeds": 5, "arms": ["a", "b"]}
    assert differences(begun, {"seeds": 5, "arms": ("a", "b")}) == []
    told = differences(begun, {"seeds": 3, "arms": ["a"], "new": 1})
    assert told == ["seeds = 5, now 3", "arms = ['a', 'b'], now ['a']", "new = None, now 1"]


def test_session_is_resumed_with_what_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    with Session(path) as session:
        session.begin({"seeds": 5})
        session.append("ran", s=1.5)
    with Session(path) as session:
        assert session.header == {"seeds": 5}
        assert session.taken == [("ran", {"s": 1.5})]
        assert session.differences({"seeds": 3}) == ["seeds = 5, now 3"]
        session.begin({"seeds": 5})
        with pytest.raises(ConfigError, match=r"a test that was begun .* seeds = 5, now 3"):
            session.begin({"seeds": 3})
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("fields", ['"x": 1', '"s": "text"', '"s": null', '"s": []'])
def test_event_that_the_session_cannot_take_is_damage_and_frees_the_file(
    tmp_path: Path, fields: str
) -> None:
    path = tmp_path / "session.jsonl"
    path.write_text(f'{{"event": "begin"}}\n{{"event": "ran", {fields}}}\n')
    for _ in range(2):
        with pytest.raises(StorageError, match=r"session\.jsonl:2: .* damaged"):
            Session(path)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\n\n"])
@pytest.mark.parametrize("last", [b"", None])
def test_whole_lines_are_events_whatever_ends_an_editor_gave_them(
    tmp_path: Path, end: bytes, last: bytes | None
) -> None:
    path = tmp_path / "events.jsonl"
    lines = [json.dumps(event).encode() for event in EVENTS]
    path.write_bytes(end.join(lines) + (end if last is None else last))
    for _ in range(2):
        assert [event for _, event in read(path)] == EVENTS
    write(path, {"event": "after"})
    assert [event for _, event in read(path)] == [*EVENTS, {"event": "after"}]
    assert [each.name for each in tmp_path.iterdir()] == ["events.jsonl"]


def test_piece_of_a_line_is_kept_in_another_file_that_a_warning_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    for piece in (b'{"event": "ra', b'{"event": "x", "s'):
        write(path, EVENTS[0])
        path.write_bytes(path.read_bytes() + piece)
        read(path)
    cut = tmp_path / "events.jsonl.cut"
    assert cut.read_bytes() == b'{"event": "ra\n{"event": "x", "s\n'
    assert [str(cut) in record.getMessage() for record in caplog.records] == [True, True]


@pytest.mark.parametrize(
    "data", [b"# notes", b"a,b\n1,2", b'{"name": 1}\n{"ev', b"\x00" * 9, b"[1]\n", b'{"eventual']
)
def test_file_of_another_kind_is_named_and_stays_as_it_is(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(data)
    for use in (read, Session):
        with pytest.raises(StorageError, match=r"events\.jsonl:1: "):
            use(path)
    assert path.read_bytes() == data
    assert [each.name for each in tmp_path.iterdir()] == ["events.jsonl"]


def test_damaged_line_keeps_what_follows_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    data = b'{"event": "begin"}\n{"event": "ran"}\n{"eve'
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"session\.jsonl:2: "):
        Session(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ('{"event": "ran", "s": 1}\n{"event": "begin"}', 1),
        ('{"event": "begin", "a": 1}\n{"event": "ran", "s": 1}\n{"event": "begin", "a": 2}', 3),
    ],
)
def test_session_begins_once_and_first(tmp_path: Path, lines: str, number: int) -> None:
    (tmp_path / "session.jsonl").write_text(lines)
    with pytest.raises(StorageError, match=rf"session\.jsonl:{number}: "):
        Session(tmp_path / "session.jsonl")


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
