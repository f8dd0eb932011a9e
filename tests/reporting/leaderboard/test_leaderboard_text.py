import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from helpers.making import make_record, make_run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tune_speed.core.records import NOT_CERTIFIED, Status, Timing
from tune_speed.core.words import read_notes
from tune_speed.reporting.leaderboard import tables
from tune_speed.reporting.leaderboard import text as report
from tune_speed.reporting.leaderboard.ranking import Board, Row, make_boards
from tune_speed.reporting.leaderboard.tables import as_renderable
from tune_speed.reporting.table import Table

NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)


def boards() -> list[Board]:
    trials = [make_record(f"t{i:04d}", time_s=1.0 + i) for i in range(3)]
    return make_boards((f"run{i}", record) for i, record in enumerate(trials))


def shown(boards: list[Board]) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(as_renderable(boards))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_json_holds_unrounded_figures() -> None:
    rows = json.loads(tables.as_json(boards()))[0]["rows"]
    assert [row["time_to_target_s"] for row in rows] == [1.0, 2.0, 3.0]
    assert rows[0]["params"] == {"optimizer.sgd.lr": 0.1}


def test_csv_has_a_line_a_row_and_names_every_field() -> None:
    lines = list(csv.DictReader(io.StringIO(tables.as_csv(boards()))))
    assert [line["trial_id"] for line in lines] == ["t0000", "t0001", "t0002"]
    assert lines[0]["device"] == "cpu (1 threads, test)"
    assert json.loads(lines[0]["params"]) == {"optimizer.sgd.lr": 0.1}


def test_markup_in_names_is_shown_as_it_is() -> None:
    record = make_record(study="[red]<script>alert(1)</script>")
    evil = make_boards([(None, record)])
    assert "[red]<script>" in shown(evil)
    assert "<script>" not in tables.as_markdown(evil).replace("\\<", "")


def certified_boards() -> list[Board]:
    verification = {
        "status": "re-timed",
        "incumbent": "study/t0001",
        "speedup": 1.25,
        "p_value": 0.01,
        "adjusted_p_value": 0.02,
    }
    runs = tuple(make_run(time_s=1.0 + i / 10, seed=i) for i in range(6))
    record = make_record(runs=runs).model_copy(
        update={"kind": "certified", "certificate": {"verification": verification}}
    )
    return make_boards([(None, record), (None, make_record("t0001"))])


def test_listing_as_csv_reads_back() -> None:
    rows = [{"name": "a,b", "about": 'with "quotes"\nand a line'}]
    assert list(csv.DictReader(io.StringIO(Table.of_rows(rows).csv()))) == rows


def test_ties_are_told_in_every_form() -> None:
    tied = make_boards((None, make_record(f"t{i:04d}")) for i in range(2))
    assert [row["rank"] for row in json.loads(tables.as_json(tied))[0]["rows"]] == [1, 1]
    assert all(row["tied"] is True for row in json.loads(tables.as_json(tied))[0]["rows"])
    lines = list(csv.DictReader(io.StringIO(tables.as_csv(tied))))
    assert [(line["rank"], line["tied"]) for line in lines] == [("1", "True")] * 2


def test_fields_of_board_and_row_have_different_names() -> None:
    header = tables.as_csv(boards()).splitlines()[0].split(",")
    assert len(set(header)) == len(header) == len(Board.model_fields) - 3 + len(Row.model_fields)


@settings(max_examples=40)
@example([("\r", 'a\r\n,"', True)])
@given(st.lists(st.tuples(NAMES, NAMES, st.booleans()), min_size=1, max_size=4))
def test_csv_reads_back_with_pandas(trials: list[tuple[str, str, bool]]) -> None:
    records = [
        make_record(
            f"t{number:04d}",
            Status.REACHED if is_hit else Status.FAILED,
            study=study,
            device=device,
            params={device: study, "lr": 0.1 / 3},
        )
        for number, (study, device, is_hit) in enumerate(trials)
    ]
    made = make_boards(((None, record) for record in records), with_misses=True)
    read = pd.read_csv(io.StringIO(tables.as_csv(made), newline=""), dtype=str, na_filter=False)
    rows = [(board, row) for board in made for row in board.rows]
    for (board, row), (_, line) in zip(rows, read.iterrows(), strict=True):
        assert (line["device"], line["study"]) == (board.device, row.study)
        assert line["rank"] == ("" if row.rank is None else str(row.rank))
        assert json.loads(line["params"]) == row.params
        assert line["expected_s"] == ("" if row.expected_s is None else repr(row.expected_s))


def test_csv_has_numbers_where_pandas_expects_them() -> None:
    read = pd.read_csv(io.StringIO(tables.as_csv(boards())))
    assert read["rank"].tolist() == [1, 2, 3]
    assert read["expected_s"].tolist() == [1.0, 2.0, 3.0]
    assert read["tied"].tolist() == [False] * 3


def test_time_of_one_run_stands_without_an_interval_that_says_nothing() -> None:
    assert report.interval_text(45.56, 0.0, None) == "45.56"
    assert report.interval_text(45.56, 0.53, None) == "45.56 (0.53–∞)"
    assert report.interval_text(None, 0.0, None) == "∞"


def rows_with(board: Board, **fields: Any) -> Board:
    rows = tuple(row.model_copy(update=fields) for row in board.rows)
    return board.model_copy(update={"rows": rows})


ISOLATED = make_run().model_copy(update={"timing": Timing.ISOLATED})
CHANGED = "loader is slow; re-clocked: 49.2 → 40.7 ms a step, by 2 windows"
RECLOCKED = make_run().model_copy(update={"note": read_notes(CHANGED)})
MISSED = (None, make_record("t0001", Status.MISSED))
BOARDS: dict[str, list[Board]] = {
    "three estimates": boards(),
    "one met": make_boards([(None, make_record()), MISSED]),
    "none met": make_boards([MISSED]),
    "nothing": [],
    "certified and an estimate": certified_boards(),
    "disturbed": [
        rows_with(certified_boards()[0], timing="disturbed, exclusive", verification=NOT_CERTIFIED)
    ],
    "isolated": make_boards([(None, make_record(runs=(ISOLATED,)))]),
    "re-clocked": make_boards(
        [(None, make_record(runs=(RECLOCKED,))), (None, make_record("t0001"))]
    ),
    "tied": make_boards((None, make_record(f"t{i:04d}")) for i in range(2)),
    "where": make_boards([(None, make_record())], where="batch_size>=512"),
}


@pytest.mark.parametrize("name", BOARDS)
def test_boards_as_people_read_them(name: str, kept_text: Callable[[str, str], None]) -> None:
    found = BOARDS[name]
    kept_text("\n".join(line.rstrip() for line in shown(found).splitlines()), "terminal")
    kept_text(tables.as_markdown(found), "markdown")
    columns = [", ".join(tables.told(board, tables.PAGE[board.kind])) for board in found]
    kept_text("\n".join(columns), "page")
