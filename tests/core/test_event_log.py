import os
from pathlib import Path
from typing import Any

import pytest

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.core.event_log import EventLog, SessionLog, differences

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
