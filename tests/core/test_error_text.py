import pytest

from tune_speed.core.errors import (
    MOST_OF_REASON,
    MOST_OF_TRACEBACK,
    one_line,
    readable,
    reason_of,
    traceback_of,
)


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


def test_reason_is_kind_and_first_line() -> None:
    assert reason_of(ValueError("must be 1\nbut got 2")) == "ValueError: must be 1"
    assert reason_of(KeyboardInterrupt()) == "KeyboardInterrupt: no message"


def test_long_message_is_cut_in_the_middle_and_says_so() -> None:
    error = caught(ValueError("first" + "x" * 10**6 + "last"))
    reason, text = reason_of(error), traceback_of(error)
    assert len(reason) < MOST_OF_REASON + 60 and len(text) < MOST_OF_TRACEBACK + 60
    assert reason.startswith("ValueError: first") and "characters left out" in reason
    assert text.startswith("Traceback") and text.endswith("last\n")


@pytest.mark.parametrize("text", ["\udcff\ud800", "a\x00b", "\x1b[2Jgone", "\r\x9b1A"])
def test_what_terminals_and_databases_refuse_is_replaced(text: str) -> None:
    kept = readable(text)
    assert kept.isprintable() and kept.encode()
    assert "\N{REPLACEMENT CHARACTER}" in kept


def test_lines_stay_and_words_in_any_script() -> None:
    assert readable("größer\n\tals 模型") == "größer\n\tals 模型"


def test_passwords_in_addresses_are_hidden() -> None:
    error = caught(OSError("no postgresql://me:s3cret@db/x, no https://h/?token=t0ken"))
    for text in (reason_of(error), traceback_of(error)):
        assert "s3cret" not in text and "t0ken" not in text
        assert "postgresql://me:***@db/x" in text


def test_text_without_a_line_is_empty() -> None:
    assert one_line(" \n ") == ""
