"""The form of a checkpoint's file: what is not whole and unchanged is never looked into."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.training.checkpoint.store import BadCheckpoint, Header, head, peek, split, write

HEADER = Header(
    identity={"trial": "t0000"},
    step=3,
    num_steps=9,
    recipe={"epochs": 2.0},
    first_batch_size=8,
    started_at="2026-01-01",
    num_bytes=7,
)


def make_file(header: Header = HEADER, payload: bytes = b"payload") -> bytes:
    file, content = io.BytesIO(), io.BytesIO(payload)
    write(file, head(header, content), content)
    return file.getvalue()


def test_file_gives_back_what_was_written() -> None:
    header, payload = split(make_file())
    assert header == HEADER and bytes(payload) == b"payload"
    assert peek(make_file()[:-7]) == HEADER


@given(place=st.integers(0, len(make_file()) - 1), change=st.integers(1, 255))
def test_file_with_any_byte_changed_is_refused(place: int, change: int) -> None:
    content = bytearray(make_file())
    content[place] ^= change
    with pytest.raises(BadCheckpoint):
        split(bytes(content))


@given(length=st.integers(0, len(make_file()) - 1))
def test_file_that_is_cut_off_anywhere_is_refused(length: int) -> None:
    with pytest.raises(BadCheckpoint):
        split(make_file()[:length])


@given(more=st.binary(min_size=1, max_size=5))
def test_file_with_more_at_its_end_is_refused(more: bytes) -> None:
    with pytest.raises(BadCheckpoint):
        split(make_file() + more)


@given(content=st.binary(max_size=500))
def test_no_content_makes_the_reader_fail_otherwise(content: bytes) -> None:
    for read in (split, peek):
        with pytest.raises(BadCheckpoint):
            read(content)


def test_reasons_say_what_is_wrong() -> None:
    content = make_file()
    reasons = {
        b"": "it is no checkpoint",
        content[:-1]: "it is cut off",
        content[:100]: "cut off in its header",
        content[:-1] + b"X": "its digest is another",
        content.replace(b"checkpoint 1 ", b"checkpoint 7 "): "format 7, and this version has 1",
    }
    for changed, reason in reasons.items():
        with pytest.raises(BadCheckpoint, match=reason):
            split(changed)
