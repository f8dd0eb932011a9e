"""Searches of a benchmark that go on where a file of rows has ended."""

import json
from pathlib import Path

import pytest
from kept_rows import Row, read_rows, run_all

FOUND_BEFORE: Row = {"seed": 0, "square": 0}


def search(seed: int) -> list[Row]:
    """A search that fails on a negative seed."""
    return [{"seed": seed, "square": round(seed**0.5) ** 4}]


def test_rows_of_all_searches_follow_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert read_rows(None) == read_rows(file) == []
    file.write_text(json.dumps([FOUND_BEFORE]))
    rows = read_rows(file)
    run_all(search, [4, 1, 9], rows, jobs=2, out=file)
    assert rows == [FOUND_BEFORE, *({"seed": n, "square": n**2} for n in (4, 1, 9))]
    assert read_rows(file) == rows


def test_a_search_that_fails_leaves_the_rows_of_those_before_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    with pytest.raises(TypeError):  # The root of -1 is complex, and cannot be rounded.
        run_all(search, [4, -1, 9], [], jobs=1, out=file)
    assert read_rows(file) == [{"seed": 4, "square": 16}]
