"""The order in which files of tests are begun names files that are there."""

from pathlib import Path

from longest_first import LONGEST, rank


def test_every_file_that_comes_first_is_there() -> None:
    tests = Path(__file__).parent
    assert [file for file in LONGEST if not (tests / file).is_file()] == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_longest_file_comes_before_others_and_those_before_the_rest() -> None:
    files = ["test_errors.py", LONGEST[1], "test_redact.py", LONGEST[0]]
    assert sorted(files, key=rank) == [LONGEST[0], LONGEST[1], "test_errors.py", "test_redact.py"]
