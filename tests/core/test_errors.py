import errno
import inspect
import os
from pathlib import Path

import pytest

from tune_speed.core import errors
from tune_speed.core.errors import (
    MOST_OF_REASON,
    MOST_OF_TRACEBACK,
    ConfigError,
    Problem,
    StorageError,
    TuneSpeedError,
    first_line,
    one_line,
    readable,
    reason_of,
    refuse_link,
    traceback_of,
    unwritable,
)


def test_problem_says_where_what_and_what_to_try() -> None:
    problem = Problem(
        path="recipe.optimizer.sgd.lr",
        must="must be greater than 0",
        given="-1",
        hint="Try 0.1.",
        file="a.yaml",
        line=7,
    )
    expected = "a.yaml:7: recipe.optimizer.sgd.lr: must be greater than 0, but got -1. Try 0.1."
    assert str(problem) == expected


def test_problem_without_place_or_value_is_still_a_sentence() -> None:
    assert str(Problem(path="", must="a file must hold a mapping")) == "a file must hold a mapping."


def test_config_error_lists_every_problem() -> None:
    problems = tuple(Problem(path=f"field{i}", must="must be there") for i in range(5))
    error = ConfigError("x.yaml has 5 mistakes:", problems=problems)
    assert str(error).count("\n") == 5
    assert isinstance(error, ValueError)


def test_each_kind_of_error_has_its_own_exit_code() -> None:
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, TuneSpeedError) and "exit_code" in vars(kind)
    ]
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(kinds) == 5
    assert 0 not in codes


def test_question_ends_a_sentence_as_it_is() -> None:
    problem = Problem(path="a", must="must be b; did you mean `c`?", hint="Try it.")
    assert str(problem) == "a: must be b; did you mean `c`? Try it."


def test_error_of_one_mistake_is_that_problem() -> None:
    error = ConfigError.of("a.b", "must be 1", given="2", line=3)
    assert error.problems == (Problem(path="a.b", must="must be 1", given="2", line=3),)
    assert str(error) == "3: a.b: must be 1, but got 2."


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free some space, or name"),
        (errno.EACCES, "Give yourself the right to write there, or name"),
        (errno.EROFS, "Mount the disk so that it can be written, or name"),
        (errno.EIO, "Name"),
    ],
)
def test_remedy_is_that_of_the_error(tmp_path: Path, number: int, remedy: str) -> None:
    words, path = os.strerror(number), tmp_path / "a"
    error = unwritable(path, OSError(number, words), hint="name another")
    assert str(error) == f"{path} cannot be written: {words}. {remedy} another."


def test_what_is_in_the_way_is_named_and_not_the_space_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "lost").symlink_to(tmp_path / "gone")

    def why(path: Path) -> str:
        try:
            path.parent.mkdir(exist_ok=True)
            path.open("w").close()
        except OSError as error:
            return str(unwritable(path, error, hint="make room")).replace(str(tmp_path), "")
        raise AssertionError(path)

    assert why(tmp_path / "file" / "a").startswith("/file/a cannot be written: /file is a file")
    assert why(tmp_path / "loop").startswith("/loop cannot be written: it is a link, to /loop")
    assert why(tmp_path / "lost" / "a").startswith("/lost/a cannot be written: /lost is a link to")
    assert why(tmp_path / "loop" / "a").startswith("/loop/a cannot be written: /loop is a link to")
    assert why(tmp_path).endswith("it is a folder. Move it away, or name another file.")


def test_folder_of_ours_must_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    refuse_link(tmp_path)
    refuse_link(tmp_path / "missing")
    with pytest.raises(StorageError, match="link must be a folder, but it is a link, to"):
        refuse_link(tmp_path / "link")


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:
        return raised


def test_reason_is_kind_and_first_line() -> None:
    error = ValueError("must be 1\nbut got 2")
    assert reason_of(error) == first_line(error) == "ValueError: must be 1"
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
